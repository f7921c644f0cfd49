// Which events and alerts are marked on charts, and where.
import { interpolate } from "../data/inline.ts";
import type { AlertRow, Attempt, EventRow, Series } from "../data/types.ts";

export interface Mark {
  x: number;
  severity: string;
  text: string;
  // Whether it divides the chart, however harmless it is.
  divides?: boolean;
}

export interface Annotation {
  timestamp: string;
  step?: number;
  severity: string;
  text: string;
  divides?: boolean;
}

// Where a run was started again.
export function annotateAttempts(attempts: Attempt[]): Annotation[] {
  return attempts.slice(1).flatMap((attempt) => (
    attempt.started === null ? [] : [{ timestamp: attempt.started, step: attempt.first_step ?? undefined, severity: "info", text: `attempt ${attempt.number} started`, divides: true }]
  ));
}

function isBad(severity: string | undefined): boolean {
  return severity === "warning" || severity === "critical";
}

// Warnings and worse, and the training's own events: only those have a step. The agent's housekeeping is left out, and so
// are phases, of which every step has several. The worst come first: where there are too many, the others are dropped.
export function collectAnnotations(events: EventRow[], alerts: AlertRow[]): Annotation[] {
  const found: Annotation[] = events
    .filter((row) => isBad(row.severity) || (typeof row.step === "number" && row.event !== "phase"))
    .map((row) => ({ timestamp: row.timestamp, step: row.step, severity: row.severity ?? "info", text: isBad(row.severity) ? row.message || row.event || "" : [row.event, row.message].filter(Boolean).join(": ") }));
  for (const row of alerts) {
    if (row.state === "firing") found.push({ timestamp: row.timestamp, step: row.step, severity: row.severity ?? "warning", text: row.message ?? row.rule ?? "" });
  }
  return found.sort((a, b) => Number(isBad(b.severity)) - Number(isBad(a.severity)));
}

// `scale` is the metric that is the axis, over the steps; null where the axis is step or time.
export function place(annotations: Annotation[], axis: string, started: string | null | undefined, scale: Series | null): Mark[] {
  const origin = started ? Date.parse(started) / 1000 : 0;
  return annotations.flatMap((item): Mark[] => {
    const x = placeOf(item, axis, origin, scale);
    return typeof x === "number" && Number.isFinite(x) ? [{ x, severity: item.severity, text: item.text, divides: item.divides }] : [];
  });
}

function placeOf(item: Annotation, axis: string, origin: number, scale: Series | null): number | undefined {
  if (axis === "time") return Date.parse(item.timestamp) / 1000;
  if (axis === "relative") return Date.parse(item.timestamp) / 1000 - origin;
  if (axis === "step" || item.step === undefined) return axis === "step" ? item.step : undefined;
  return scale?.x.length ? interpolate(scale.x, scale.y, item.step) : undefined;
}

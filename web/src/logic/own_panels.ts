// How the runs of a project are shown: panels made by the user, pins, scales, hidden lines. Each change is a function of
// what is kept, so that it can be made again on top of what somebody else has changed meanwhile.
import type { OwnPanel, View } from "../data/types.ts";
import { moveScale, replaceHidden } from "./route.ts";

export function emptyView(project: string): View {
  return { project, panels: [], pins: [], log: [], linear: [], hide: [], columns: null, is_kept: false, problem: "" };
}

// What this browser kept: what cannot be understood is left out. Null: nothing.
export function parseView(text: string | null, project: string): View | null {
  let found: unknown;
  try {
    found = JSON.parse(text ?? "null");
  } catch {
    return null;
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) return null;
  const { panels, pins, log, linear, hide, columns } = found as Record<string, unknown>;
  return {
    ...emptyView(project),
    panels: Array.isArray(panels) ? panels.flatMap(parsePanel) : [],
    pins: texts(pins),
    log: texts(log),
    linear: texts(linear),
    hide: texts(hide),
    columns: Array.isArray(columns) ? texts(columns) : null,
  };
}

function parsePanel(item: unknown): OwnPanel[] {
  if (typeof item !== "object" || item === null) return [];
  const { id, title, items, x } = item as Record<string, unknown>;
  if (typeof id !== "string" || !id || !Array.isArray(items)) return [];
  return [{ id, title: asText(title), items: texts(items), x: asText(x) }];
}

function asText(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}

// One thing to draw in each line.
export function parseItems(text: string): string[] {
  return [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))];
}

export function titleOf(panel: OwnPanel): string {
  return panel.title || panel.items.join(", ") || "New panel";
}

export class ChangedMeanwhile extends Error {}

// A panel that is changed keeps its place; a new one is the last. `before` is what the user saw when beginning to edit.
export function putPanel(view: View, panel: OwnPanel, before: OwnPanel | null): View {
  const there = view.panels.find((item) => item.id === panel.id);
  if (before && there && !isSame(there, before) && !isSame(there, panel)) throw new ChangedMeanwhile(`someone else has changed ${titleOf(there)}`);
  return { ...view, panels: there ? view.panels.map((item) => (item === there ? panel : item)) : [...view.panels, panel] };
}

function isSame(one: OwnPanel, other: OwnPanel): boolean {
  return one.title === other.title && one.x === other.x && one.items.join("\n") === other.items.join("\n");
}

export function removePanel(view: View, id: string): View {
  return { ...view, panels: view.panels.filter((panel) => panel.id !== id) };
}

export function movePanel(view: View, id: string): View {
  return { ...view, panels: moveEarlier(view.panels, view.panels.findIndex((panel) => panel.id === id)) };
}

// One place earlier.
export function moveEarlier<T>(items: T[], at: number): T[] {
  return at < 1 ? items : [...items.slice(0, at - 1), items[at], items[at - 1], ...items.slice(at + 1)];
}

export function withName(names: string[], name: string, isWanted: boolean): string[] {
  const others = names.filter((item) => item !== name);
  return isWanted ? [...others, name] : others;
}

export function keepScale(view: View, chart: string, declared: boolean, log: boolean): View {
  return { ...view, ...moveScale(view, chart, declared, log) };
}

export function keepHidden(view: View, chart: string, lines: string[], hidden: ReadonlySet<string>): View {
  return { ...view, hide: replaceHidden(view.hide, chart, lines, hidden) };
}

const COUNTS = /epoch|token|sample|example|step|iter|frame|episode|seen/i;
const MOST_AXES = 300;

// Every metric may be an axis; those that count something come first.
export function axisNames(names: string[], skip: ReadonlySet<string>): string[] {
  const usual = names.filter((name) => name !== "step" && !skip.has(name.split("/")[0]));
  const rank = (name: string) => (COUNTS.test(name) && !/time|per_sec|_rate/i.test(name) ? 0 : 1);
  return usual.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b)).slice(0, MOST_AXES);
}

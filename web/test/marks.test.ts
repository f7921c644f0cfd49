import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventRow, Series } from "../src/data/types.ts";
import { annotateAttempts, collectAnnotations, place } from "../src/logic/marks.ts";

const AT = "2026-01-01T00:01:00Z";
const event = (more: Partial<EventRow>): EventRow => ({ timestamp: AT, severity: "info", ...more });

test("events of the training are marked, those of the agent are not, and the worst come first", () => {
  const annotations = collectAnnotations(
    [
      event({ event: "checkpoint", message: "saved", step: 100 }),
      event({ event: "phase", message: "gen", step: 100 }),
      event({ event: "agent_attached", message: "the agent watches this run" }),
      event({ event: "rank_lost", message: "rank 3 is gone", severity: "critical" }),
    ],
    [{ timestamp: AT, state: "firing", severity: "warning", message: "loss is NaN", step: 7 }, { timestamp: AT, state: "resolved", message: "fine" }],
  );
  assert.deepEqual(annotations.map((item) => item.text), ["rank 3 is gone", "loss is NaN", "checkpoint: saved"]);
});

test("a mark has a place on every axis, on that of a metric by its step", () => {
  const annotations = collectAnnotations([event({ event: "checkpoint", step: 150 })], []);
  const epoch: Series = { name: "epoch", labels: {}, rank: null, total: 3, x: [0, 100, 200], y: [0, 1, 2] };
  assert.equal(place(annotations, "step", null, null)[0].x, 150);
  assert.equal(place(annotations, "time", null, null)[0].x, Date.parse(AT) / 1000);
  assert.equal(place(annotations, "relative", "2026-01-01T00:00:00Z", null)[0].x, 60);
  assert.equal(place(annotations, "epoch", null, epoch)[0].x, 1.5);
  assert.deepEqual(place(annotations, "epoch", null, null), []);
  assert.deepEqual(place(collectAnnotations([event({ severity: "warning", message: "slow" })], []), "step", null, null), []);
});

test("every attempt but the first is marked at its first step, or at its time", () => {
  const attempt = (number: number, started: string, first_step: number | null) => ({ number, status: "failed", started, seconds: 1, first_step, host: "h", cause: null });
  const annotations = annotateAttempts([attempt(1, AT, 0), attempt(2, AT, 120), attempt(3, AT, null)]);
  assert.deepEqual(place(annotations, "step", AT, null).map((mark) => [mark.x, mark.text, mark.divides]), [[120, "attempt 2 started", true]]);
  assert.equal(place(annotations, "time", AT, null).length, 2);
});

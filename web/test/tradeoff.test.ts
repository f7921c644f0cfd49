import assert from "node:assert/strict";
import { test } from "node:test";
import type { MeasuredVariant } from "../src/data/types.ts";
import { tradeOff } from "../src/logic/tradeoff.ts";

const FRAME = { left: 0, right: 116, top: 0, bottom: 116 };
const row = (variant: string, median: number, error: number, size: number, batch = 1): MeasuredVariant =>
  ({ variant, batch, threads: 1, latency: { median }, agreement: { relative_error: error }, disk_mb: size }) as unknown as MeasuredVariant;

test("slower is further right, less exact higher up, larger a larger circle", () => {
  const { spots: [plain, small], across, upwards } = tradeOff([row("fp32", 2, 0, 4), row("int8", 1, 0.02, 1)], FRAME);
  assert.deepEqual(across[2], { value: 1, at: 50 });
  assert.deepEqual(upwards[0], { value: 0, at: 116 });
  assert.deepEqual([plain.x, plain.y, plain.radius], [100, 116, 16]);
  assert.deepEqual([small.x, small.y, small.radius], [50, 16, 8]);
});

test("only rows of one batch size are beside each other", () => {
  assert.deepEqual(tradeOff([row("fp32", 2, 0, 4), row("fp32", 9, 0, 4, 8)], FRAME).spots.map((spot) => spot.latency), [2]);
});

test("a model without weights is still a circle", () => {
  assert.equal(tradeOff([row("fp32", 2, 0, 0)], FRAME).spots[0].radius, 4);
});

test("an error that was not measured is not drawn as none, the reference has none", () => {
  const of = (variant: string, more: object) => ({ variant, batch: 1, threads: 1, latency: { median: 1 }, ...more }) as unknown as MeasuredVariant;
  const { spots, missing } = tradeOff([of("fp32", { reference: true }), of("int8", { agreement: { cosine: 0.9 } })], FRAME);
  assert.deepEqual(spots.map((spot) => [spot.name, spot.error]), [["fp32", 0]]);
  assert.deepEqual(missing, ["int8"]);
});

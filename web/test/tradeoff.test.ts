import assert from "node:assert/strict";
import { test } from "node:test";
import type { MeasuredVariant } from "../src/data/types.ts";
import { tradeOff } from "../src/logic/tradeoff.ts";

const FRAME = { left: 0, right: 116, top: 0, bottom: 116 };
const row = (variant: string, median: number, error: number, size: number, batch = 1): MeasuredVariant =>
  ({ variant, batch, threads: 1, latency: { median }, agreement: { relative_error: error }, disk_mb: size }) as unknown as MeasuredVariant;

test("slower is further right, less exact higher up, larger a larger circle", () => {
  const [plain, small] = tradeOff([row("fp32", 2, 0, 4), row("int8", 1, 0.02, 1)], FRAME);
  assert.deepEqual([plain.x, plain.y, plain.radius], [100, 116, 16]);
  assert.deepEqual([small.x, small.y, small.radius], [50, 16, 8]);
});

test("only rows of one batch size are beside each other", () => {
  assert.deepEqual(tradeOff([row("fp32", 2, 0, 4), row("fp32", 9, 0, 4, 8)], FRAME).map((spot) => spot.latency), [2]);
});

test("a model without weights is still a circle", () => {
  assert.equal(tradeOff([row("fp32", 2, 0, 0)], FRAME)[0].radius, 4);
});

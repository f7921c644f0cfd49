import assert from "node:assert/strict";
import { test } from "node:test";
import type { MeasuredVariant } from "../src/data/types.ts";
import { roofline } from "../src/logic/roofline.ts";

const FRAME = { left: 0, right: 300, top: 0, bottom: 200 };
const PEAKS = [{ threads: 1, flops_per_second: 1e11, bytes_per_second: 1e10 }];
const row = (variant: string, batch: number, flops: number, moved: number, median: number, threads = 1): MeasuredVariant =>
  ({ variant, batch, threads, flops, bytes_moved: moved, latency: { median } }) as unknown as MeasuredVariant;

test("a dot is as far below the roof as the model is from what the machine can do", () => {
  // 1e8 FLOP with 1e8 bytes: bandwidth allows 1e10 a second, and half of that is reached.
  const found = roofline([row("fp32", 1, 1e8, 1e8, 20), row("fp32", 64, 64e8, 2e8, 64)], PEAKS, FRAME)!;
  const [small, large] = found.lines[0].dots;
  assert.deepEqual([small.intensity, small.rate, small.share], [1, 5e9, 0.5]);
  assert.deepEqual([large.intensity, large.rate, large.share], [32, 1e11, 1]);
  assert.ok(Math.abs(large.y - found.roof[2].y) < 1e-9);
  assert.ok(small.x < large.x && small.y > large.y);
});

test("the roof rises to the peak and then is flat, and the scales have marks", () => {
  const { roof, across, upwards } = roofline([row("fp32", 1, 1e8, 1e8, 20)], PEAKS, FRAME)!;
  assert.ok(roof[0].y > roof[1].y && roof[1].y === roof[2].y && roof[0].x < roof[1].x);
  assert.deepEqual(across.map((tick) => tick.value), [1, 2, 5, 10]);
  assert.deepEqual(upwards.map((tick) => tick.value), [5e9, 1e10, 2e10, 5e10, 1e11]);
});

test("without a peak for these threads, or without counted work, there is no picture", () => {
  assert.equal(roofline([row("fp32", 1, 1e8, 1e8, 20, 2)], PEAKS, FRAME), null);
  assert.equal(roofline([row("fp32", 1, 0, 1e8, 20)], PEAKS, FRAME), null);
  assert.equal(roofline([], PEAKS, FRAME), null);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { formatBrushes, isWithin, parseBrushes, scaleOf, shareOf, valueAt } from "../src/logic/sweep.ts";

test("a scale is logarithmic where values span orders, and of names where they are words", () => {
  const lr = scaleOf("lr", [0.0001, 0.01, 1, null])!;
  assert.equal(lr.kind, "log");
  assert.equal(shareOf(lr, 0.01), 0.5);
  assert.ok(Math.abs(valueAt(lr, 0.5) - 0.01) < 1e-12);
  const width = scaleOf("width", [64, 128])!;
  assert.deepEqual([width.kind, shareOf(width, 96), valueAt(width, 0.5)], ["linear", 0.5, 96]);
  const names = scaleOf("optimizer", ["sgd", "adam", true])!;
  assert.deepEqual(names.names, ["adam", "sgd", "true"]);
  assert.equal(shareOf(names, "sgd"), 0.5);
  assert.equal(shareOf(names, "lion"), null);
});

test("what does not differ, or is a name of its own for each run, has no axis", () => {
  assert.equal(scaleOf("a", [1, 1, null]), null);
  assert.equal(scaleOf("a", Array.from({ length: 100 }, (_, at) => `run ${at}`)), null);
  assert.equal(scaleOf("a", []), null);
});

test("what is missing or not finite has no place", () => {
  const scale = scaleOf("lr", [0.001, 1])!;
  for (const value of [null, undefined, "NaN", 0, -1]) assert.equal(shareOf(scale, value), null);
});

test("a brush keeps the runs within it, and comes back from the address", () => {
  const scales = [scaleOf("lr", [0, 1])!, scaleOf("a:b", [0, 1])!];
  const brushes = parseBrushes(formatBrushes(new Map([["a:b", [0.25, 0.5]]])));
  assert.deepEqual(brushes.get("a:b"), [0.25, 0.5]);
  assert.equal(isWithin(scales, [0.9, 0.3], brushes), true);
  assert.equal(isWithin(scales, [0.9, 0.6], brushes), false);
  assert.equal(isWithin(scales, [0.9, null], brushes), false);
  assert.equal(isWithin(scales, [null, 0.3], brushes), true);
  assert.equal(parseBrushes(["1:0:x", "a:1:x", "0:1"]).size, 0);
});

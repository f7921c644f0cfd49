import assert from "node:assert/strict";
import { test } from "node:test";
import { formatBrushes, isWithin, moveKey, parseBrushes, scaleOf, shareOf, spreadShareOf, stepBrush, ticksOf, valueAt } from "../src/logic/sweep.ts";

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

test("dots of a category lie beside each other, each always in the same place", () => {
  const names = scaleOf("optimizer", ["adam", "sgd"])!;
  const shares = Array.from({ length: 200 }, (_, at) => spreadShareOf(names, "adam", `run-${at}`)!);
  assert.ok(new Set(shares).size > 190);
  assert.ok(shares.every((share) => share > 0.05 && share < 0.45), "within their half");
  assert.ok(Math.max(...shares) - Math.min(...shares) > 0.25);
  assert.equal(spreadShareOf(names, "adam", "run-7"), shares[7]);
  assert.equal(spreadShareOf(scaleOf("lr", [0, 1])!, 0.5, "run-7"), 0.5, "a number stays where it is");
});

test("a range is changed step by step, and the whole axis is none", () => {
  const lr = scaleOf("lr", [0, 1])!;
  const once = stepBrush(lr, undefined, "high", -1)!;
  assert.deepEqual(once, [0, 0.95]);
  assert.equal(stepBrush(lr, once, "high", 1), null);
  assert.deepEqual(stepBrush(lr, [0.4, 0.45], "low", 1), [0.4, 0.45]);
  assert.equal(stepBrush(lr, undefined, "low", -1), null);
  const names = scaleOf("optimizer", ["adam", "lion", "sgd"])!;
  const two = stepBrush(names, undefined, "low", 1)!;
  assert.deepEqual(["adam", "lion", "sgd"].filter((name) => isWithin([names], [shareOf(names, name)], new Map([["optimizer", two]]))), ["lion", "sgd"]);
});

test("an axis is put at another place among the others", () => {
  assert.deepEqual(moveKey(["a", "b", "c"], "a", 1), ["b", "a", "c"]);
  assert.deepEqual(moveKey(["a", "b", "c"], "c", 0), ["c", "a", "b"]);
  assert.deepEqual(moveKey(["a", "b", "c"], "b", 1), ["a", "b", "c"]);
});

test("an axis names the values that were logged: all of a few, else its ends", () => {
  assert.deepEqual(ticksOf(scaleOf("width", [512, 32, 128, 32])!, 2, 0.05), [["32", 0], ["128", 0.5], ["512", 1]]);
  const many = ticksOf(scaleOf("lr", Array.from({ length: 20 }, (_, at) => 0.1234 + at))!, 2, 0.05);
  assert.deepEqual([many[0], many[2]], [["0.1234", 0], ["19.12", 1]]);
  assert.equal(many[1][0], "1.5", "the middle of a logarithmic axis");
  const crowded = scaleOf("a", [0, 1, 50, 99, 100])!;
  assert.deepEqual(ticksOf(crowded, 2, 0.05).map(([label]) => label), ["0", "50", "100"], "none on top of another");
  assert.deepEqual(ticksOf(scaleOf("optimizer", ["sgd", "adam"])!, 2, 0.05), [["adam", 0.25], ["sgd", 0.75]]);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { windowOf } from "../src/logic/window.ts";

test("the rows in view are drawn, and spaces are as high as the others", () => {
  const heights = [10, 20, 30, 40, 50];
  assert.deepEqual(windowOf(heights, 0, 30), { from: 0, to: 2, above: 0, below: 120 });
  assert.deepEqual(windowOf(heights, 35, 70), { from: 2, to: 4, above: 30, below: 50 });
  assert.deepEqual(windowOf(heights, 59.5, 60.5), { from: 2, to: 4, above: 30, below: 50 });
});

test("a table above or below the window draws nothing, and keeps its height", () => {
  assert.deepEqual(windowOf([10, 20], -500, -100), { from: 0, to: 0, above: 0, below: 30 });
  assert.deepEqual(windowOf([10, 20], 100, 500), { from: 2, to: 2, above: 30, below: 0 });
  assert.deepEqual(windowOf([], 0, 100), { from: 0, to: 0, above: 0, below: 0 });
});

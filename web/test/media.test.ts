import assert from "node:assert/strict";
import { test } from "node:test";
import type { MediaItem } from "../src/data/types.ts";
import { allSteps, stepAt, stepsOf } from "../src/logic/media.ts";

const item = (step: number | null): MediaItem => ({ step, time: null, file: `${step}`, caption: "", owner: "" });

test("steps are ascending, each once, and what has none comes first", () => {
  assert.deepEqual(stepsOf([item(20), item(null), item(10), item(20), item(-5)]), [null, -5, 10, 20]);
});

test("the slider of the page has the steps of all names", () => {
  const groups = [10, 5].map((step) => ({ kind: "image" as const, name: `${step}`, items: [item(step), item(null), item(7)] }));
  assert.deepEqual(allSteps(groups), [5, 7, 10]);
});

test("a name shows the newest of its steps that is not after the wanted one", () => {
  assert.equal(stepAt([10, 20, 30], 25), 20);
  assert.equal(stepAt([10, 20, 30], 30), 30);
  assert.equal(stepAt([10, 20, 30], undefined), 30);
  assert.equal(stepAt([10, 20], 5), 10); // there is nothing older
  assert.equal(stepAt([null, 10], 5), null);
  assert.equal(stepAt([], 5), null);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import type { States } from "../src/data/types.ts";
import { pieces, wordAt, wordsOf } from "../src/logic/states.ts";

const held: States = { name: "throttle_reasons", labels: {}, rank: null, changes: [[10, "none"], [20, "heat"], [30, "none"], [35, "power"]] };

test("a word holds until the next, the last until the end, and only what is shown is drawn", () => {
  assert.deepEqual(pieces(held, 15, 40).map((piece) => [piece.start, piece.end, piece.word]), [[15, 20, "none"], [20, 30, "heat"], [30, 35, "none"], [35, 40, "power"]]);
  assert.deepEqual(pieces(held, 0, 20).map((piece) => piece.word), ["none"]);
});

test("the state held longest is listed first, and the quiet one is not listed", () => {
  assert.deepEqual(wordsOf([held], 0, 40), ["heat", "power"]);
  assert.equal(wordAt(held, 25), "heat");
  assert.equal(wordAt(held, 5), null);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import type { TextPart } from "../src/data/types.ts";
import { consoleTitle, follow, linesOf, matching } from "../src/logic/console.ts";

const file = (more: Partial<TextPart>): TextPart => ({ name: "console.rank0.log", size: 0, start: 0, next: 0, cut: false, text: "", ...more });

test("what a program prints grows by what follows, and an unfinished line is replaced by itself", () => {
  const first = file({ size: 9, next: 4, text: "one\n50 %" });
  const grown = follow(first, file({ size: 20, start: 4, next: 20, text: "100 %\ntwo\n" }));
  assert.equal(grown.text, "one\n100 %\ntwo\n");
  assert.equal(grown.next, 20);
});

test("a restarted file is taken as it is", () => {
  const fresh = file({ size: 5, start: 0, next: 5, text: "anew\n" });
  assert.equal(follow(file({ size: 9, next: 9, text: "old\n" }), fresh), fresh);
});

test("the states of one progress bar are one line, and other lines stay", () => {
  const text = "start\n 10%|#    | 1/10 [00:01<00:09, 1.0it/s]\n 90%|#### | 9/10 [00:09<00:01, 1.1it/s]\nloss 0.5\nloss 0.4\n";
  assert.deepEqual(linesOf(text, true).map((line) => [line.text.slice(0, 4), line.folded]), [["star", 0], [" 90%", 1], ["loss", 0], ["loss", 0]]);
  assert.equal(linesOf(text, false).length, 5);
  assert.deepEqual(matching(linesOf(text, true), "LOSS 0.4").map((line) => line.text), ["loss 0.4"]);
  assert.equal(consoleTitle("console.rank12.stderr.log"), "rank 12 stderr");
  assert.equal(consoleTitle("console.role-rollout.rank12.log"), "rollout 12");
});

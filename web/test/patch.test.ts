import assert from "node:assert/strict";
import { test } from "node:test";
import { parsePatch } from "../src/logic/patch.ts";

test("added and removed lines are told from the names of files", () => {
  const patch = "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ def f():\n-old\n+new\n+++ three pluses\n same\ndiff --git a/y b/y\n--- a/y\n";
  assert.deepEqual(parsePatch(patch).map((line) => line.kind), ["file", "", "", "", "hunk", "removed", "added", "added", "", "file", ""]);
  assert.equal(parsePatch(patch)[5].text, "-old");
});

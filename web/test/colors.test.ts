import assert from "node:assert/strict";
import { test } from "node:test";
import { lineStyle, swatch } from "../src/logic/colors.ts";

test("32 lines look different, in both themes, and so do their swatches", () => {
  for (const dark of [true, false]) {
    const looks = Array.from({ length: 32 }, (_, at) => swatch(lineStyle(at, dark)));
    assert.equal(new Set(looks).size, 32);
    assert.deepEqual(lineStyle(32, dark), lineStyle(0, dark));
  }
});

test("a swatch has the dashes of its line", () => {
  assert.equal(swatch({ stroke: "#123456", dash: [] }), "#123456");
  assert.equal(swatch({ stroke: "#123456", dash: [6, 3] }), "repeating-linear-gradient(90deg, #123456 0px 6px, transparent 6px 9px)");
});

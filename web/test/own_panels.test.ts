import assert from "node:assert/strict";
import { test } from "node:test";
import { axisNames, parseItems, parsePanels, putPanel, titleOf } from "../src/logic/own_panels.ts";

const PANEL = { id: "a", title: "Gap", items: ["train/loss - val/loss"], x: "" };

test("what was stored is read again, and what is no panel is left out", () => {
  assert.deepEqual(parsePanels(JSON.stringify([PANEL, null, 3, { id: "" }, { id: "b" }, { id: "c", items: ["x", 4] }])), [
    PANEL,
    { id: "c", title: "", items: ["x"], x: "" },
  ]);
  for (const text of [null, "", "{", "{}", "null"]) assert.deepEqual(parsePanels(text), []);
});

test("keys of another version are kept", () => {
  assert.deepEqual(parsePanels(JSON.stringify([{ ...PANEL, later: 1 }])), [{ ...PANEL, later: 1 }]);
});

test("each line is one thing to draw", () => {
  assert.deepEqual(parseItems(" loss \n\nval/*\nloss\n"), ["loss", "val/*"]);
});

test("a panel without a title goes by what it draws", () => {
  assert.equal(titleOf({ ...PANEL, title: "" }), "train/loss - val/loss");
  assert.equal(titleOf({ ...PANEL, title: "", items: [] }), "New panel");
});

test("a changed panel keeps its place", () => {
  const other = { ...PANEL, id: "b" };
  assert.deepEqual(putPanel([PANEL, other], { ...PANEL, title: "New" }).map((panel) => panel.title), ["New", "Gap"]);
  assert.deepEqual(putPanel([PANEL], other).map((panel) => panel.id), ["a", "b"]);
});

test("metrics that count come first as axes", () => {
  assert.deepEqual(axisNames(["loss", "tokens", "step", "step_time", "epoch", "gradient_norm/a"], new Set(["gradient_norm"])), ["epoch", "tokens", "loss", "step_time"]);
});

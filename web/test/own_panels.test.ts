import assert from "node:assert/strict";
import { test } from "node:test";
import { axisNames, ChangedMeanwhile, emptyView, keepHidden, keepScale, moveEarlier, movePanel, parseItems, parseView, putPanel, removePanel, titleOf, withName } from "../src/logic/own_panels.ts";

const PANEL = { id: "a", title: "Gap", items: ["train/loss - val/loss"], x: "" };
const OTHER = { ...PANEL, id: "b" };
const VIEW = { ...emptyView("p"), panels: [PANEL, OTHER] };

test("what this browser kept is read again, and what cannot be understood is left out", () => {
  assert.deepEqual(parseView(JSON.stringify({ ...VIEW, pins: ["loss", 3], log: "x", columns: [] }), "p"), { ...VIEW, pins: ["loss"], columns: [] });
  const panels = [PANEL, null, 3, { id: "" }, { id: "b" }, { id: "c", items: ["x", 4] }];
  assert.deepEqual(parseView(JSON.stringify({ panels }), "p")!.panels, [PANEL, { id: "c", title: "", items: ["x"], x: "" }]);
  for (const text of [null, "", "{", "[]", "null", "3"]) assert.equal(parseView(text, "p"), null);
});

test("each line is one thing to draw", () => {
  assert.deepEqual(parseItems(" loss \n\nval/*\nloss\n"), ["loss", "val/*"]);
});

test("a panel without a title goes by what it draws", () => {
  assert.equal(titleOf({ ...PANEL, title: "" }), "train/loss - val/loss");
  assert.equal(titleOf({ ...PANEL, title: "", items: [] }), "New panel");
});

test("a changed panel keeps its place, and a new one is the last", () => {
  assert.deepEqual(putPanel(VIEW, { ...PANEL, title: "New" }, PANEL).panels.map((panel) => panel.title), ["New", "Gap"]);
  assert.deepEqual(putPanel(VIEW, { ...PANEL, id: "c" }, null).panels.map((panel) => panel.id), ["a", "b", "c"]);
});

test("what somebody else made of a panel meanwhile is not written over unseen", () => {
  const mine = { ...PANEL, title: "mine" };
  const theirs = putPanel(VIEW, { ...PANEL, title: "theirs" }, PANEL);
  assert.throws(() => putPanel(theirs, mine, PANEL), ChangedMeanwhile);
  assert.equal(putPanel(theirs, mine, theirs.panels[0]).panels[0].title, "mine");
  assert.equal(putPanel(putPanel(VIEW, mine, PANEL), mine, PANEL).panels[0].title, "mine", "made twice is made once");
  assert.deepEqual(putPanel(removePanel(VIEW, "a"), mine, PANEL).panels.map((panel) => panel.id), ["b", "a"], "what was removed comes back");
});

test("panels and pins are moved one place forward", () => {
  assert.deepEqual(movePanel(VIEW, "b").panels.map((panel) => panel.id), ["b", "a"]);
  assert.deepEqual([movePanel(VIEW, "a"), movePanel(VIEW, "none")], [VIEW, VIEW]);
  assert.deepEqual(moveEarlier(["a", "b", "c"], 2), ["a", "c", "b"]);
});

test("a name is there once, or not", () => {
  assert.deepEqual([withName(["a"], "b", true), withName(["a", "b"], "a", true), withName(["a"], "a", false), withName([], "a", false)], [["a", "b"], ["b", "a"], [], []]);
});

test("scales and hidden lines are kept where they are not as declared", () => {
  const log = keepScale(VIEW, "Loss", false, true);
  assert.deepEqual([log.log, log.linear], [["Loss"], []]);
  assert.deepEqual(keepScale(log, "Loss", false, false).log, []);
  assert.deepEqual(keepScale(VIEW, "Gradient norm", true, false).linear, ["Gradient norm"]);
  const hidden = keepHidden({ ...VIEW, hide: ["Speed: a"] }, "Loss", ["a", "b"], new Set(["b"]));
  assert.deepEqual(hidden.hide, ["Speed: a", "Loss: b"]);
  assert.deepEqual(keepHidden(hidden, "Loss", ["a", "b"], new Set()).hide, ["Speed: a"]);
});

test("metrics that count come first as axes", () => {
  assert.deepEqual(axisNames(["loss", "tokens", "step", "step_time", "epoch", "gradient_norm/a"], new Set(["gradient_norm"])), ["epoch", "tokens", "loss", "step_time"]);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import type { MachineNow } from "../src/data/types.ts";
import { machineOf, remarkOf, troubleOf } from "../src/logic/machines.ts";

const UP: MachineNow = {
  name: "gpu1", state: "up", detail: "", hint: "", version: "1", host: "h", place: "/runs", heard: 100, origin: "agent", age: 1, current: true, gpus: [],
  values: {}, utilization_percent: null, memory_used_mb: null, memory_total_mb: null, power_draw_watts: null, runs: 0, live: 0, firing: 0,
};

test("the machine of a run is the longest name that its key begins with", () => {
  assert.equal(machineOf("gpu1:20260115-a", ["gpu1", "gpu2"]), "gpu1");
  assert.equal(machineOf("gpu4:8080:20260115-a", ["gpu4", "gpu4:8080"]), "gpu4:8080");
  assert.equal(machineOf("20260115-a", []), "");
});

test("a machine that cannot be asked says why and since when", () => {
  assert.equal(troubleOf(UP, 130), "");
  assert.equal(troubleOf({ ...UP, state: "down", detail: "no route to host" }, 130), "down: no route to host, last heard 30 s ago");
  assert.equal(troubleOf({ ...UP, state: "connecting", heard: null }, 130), "connecting");
});

test("numbers that are not of now are marked", () => {
  assert.equal(remarkOf(UP), "");
  assert.equal(remarkOf({ ...UP, origin: "" }), "no metrics: no agent is running there");
  assert.equal(remarkOf({ ...UP, current: false }), "the agent there has stopped sampling");
  assert.equal(remarkOf({ ...UP, state: "down" }), "showing its last known values");
});

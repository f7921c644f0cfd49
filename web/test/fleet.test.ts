import assert from "node:assert/strict";
import { test } from "node:test";
import { formatGpus, groupAlerts, groupRacks, isBright, measureOf, movePeriod, searchHolders, sizeOf } from "../src/logic/fleet.ts";
import type { Fleet, FleetAlert, FleetNode, Holder } from "../src/data/types.ts";

const node = (name: string, rack: string, ...watts: (number | null)[]): FleetNode => ({
  name, rack, state: "up", detail: "", seen: null, model: "", simulated: true,
  gpus: watts.map((value, at) => ({ index: String(at), values: [null, null, null, value], state: "busy", holders: [], problem: "" })),
});

test("nodes are grouped by rack, those without one last", () => {
  const racks = groupRacks([node("a", ""), node("b", "r1"), node("c", "r1")]);
  assert.deepEqual(racks.map((rack) => [rack.name, rack.nodes.length]), [["r1", 2], ["", 1]]);
});

test("GPUs are listed as people write them", () => {
  assert.equal(formatGpus(["0", "1", "2", "3", "6"]), "0–3, 6");
  assert.equal(formatGpus(["0", "1", "0:2"]), "0, 1, 0:2");
  assert.equal(formatGpus([]), "");
});

test("colours go from nothing to the most there is, and percentages to 100", () => {
  const fleet = { metrics: ["utilization_percent", "memory_percent", "temperature_celsius", "power_draw_watts"], nodes: [node("a", "", 610, null)] } as unknown as Fleet;
  assert.equal(measureOf(fleet, "power_draw_watts")!.high, 650);
  assert.equal(measureOf(fleet, "memory_percent")!.high, 100);
  assert.equal(measureOf(fleet, "state"), null);
  assert.equal(isBright([253, 231, 37]), true);
  assert.equal(isBright([68, 1, 84]), false);
});

test("the more nodes, the smaller", () => {
  assert.deepEqual([4, 64, 1000].map(sizeOf), ["large", "medium", "small"]);
});

test("alerts are grouped where the gravest of a node is", () => {
  const alerts = ["n2", "n1", "n2"].map((name) => ({ node: name })) as FleetAlert[];
  assert.deepEqual(groupAlerts(alerts).map((group) => [group.node, group.alerts.length]), [["n2", 2], ["n1", 1]]);
});

test("a holder is found by any of its words", () => {
  const holder = { node: "n1", name: "run", project: "p", user: "someone", job: "Slurm job 4711", pids: [77] } as Holder;
  assert.equal(searchHolders([holder], "some 4711").length, 1);
  assert.equal(searchHolders([holder], "n2").length, 0);
  assert.deepEqual(searchHolders([{ ...holder, node: "n10" }, { ...holder, node: "n9" }], "").map(({ node }) => node), ["n9", "n10"]);
});

test("periods follow each other, none after today", () => {
  assert.equal(movePeriod("2026-11-12", "2026-11-18", true, "2026-11-18"), "2026-11-11");
  assert.equal(movePeriod("2026-11-05", "2026-11-11", false, "2026-11-18"), undefined);
  assert.equal(movePeriod("2026-11-01", "2026-11-01", false, "2026-11-18"), "2026-11-02");
});

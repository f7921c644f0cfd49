import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type { Labels, Metric, Panel, Row, Runs, Series } from "../src/data/types.ts";
import { byDevice, findSpelling, gpuTitle, groupByPrefix, inOrder, panelNames, search, seriesTitle } from "../src/logic/metrics.ts";
import { chartQuery, first, formatRoute, hiddenLines, hideLines, isLog, number, parseRoute, setLog, withQuery } from "../src/logic/route.ts";
import { findUnknown, parseSearch, searchRows } from "../src/logic/search.ts";
import { columnTitles, filterRows, groupRows, interesting, mergeRuns, orderMetrics, runTitles, sortRows } from "../src/logic/table.ts";
import { heat, lineStyle } from "../src/logic/colors.ts";

const row = (more: Partial<Row>): Row => ({
  key: "k", id: "k", name: "n", project: "p", status: "finished", live: false, cause: null, kind: "", started: null, ended: null,
  seconds: null, step: null, attempt: 1, simulated: false, tags: [], host: "", config: {}, summary: {}, energy_joules: null, ...more,
});

test("runs of one name go by their ids", () => {
  const titles = runTitles([row({ name: "a", id: "1" }), row({ name: "b", id: "2" }), row({ name: "a", id: "3" })]);
  assert.deepEqual(titles, ["1", "b", "3"]);
});

test("a deep link comes back as it was, with any run name", () => {
  const route = { page: "training", run: "a/b <c>?#&%", query: new Map([["x", ["time"]], ["run", ["1", "2"]]]) };
  assert.deepEqual(parseRoute(formatRoute(route)), route);
});

test("an address that makes no sense leads somewhere harmless", () => {
  assert.equal(parseRoute("#/run/%E0%A4%A/training").run, "%E0%A4%A");
  assert.equal(parseRoute("#/nowhere").page, "unknown");
  assert.equal(parseRoute("").page, "runs");
  assert.equal(parseRoute("#/run/k/constructor").page, "overview");
  assert.equal(number(parseRoute("#/runs?from=abc"), "from"), undefined);
});

test("parts of the query change without touching the rest", () => {
  const route = withQuery(parseRoute("#/runs?q=a&sort=name"), { q: undefined, status: "failed" });
  assert.equal(formatRoute(route), "#/runs?sort=name&status=failed");
  assert.equal(first(route, "q"), undefined);
});

// What the server finds too: tests/views/data/test_run_search.py reads the same cases.
const searches = JSON.parse(readFileSync(new URL("../../tests/data/run_search.json", import.meta.url), "utf8")) as {
  rows: Row[]; cases: [string, string[]][]; errors: [string, string, string][]; unknown: [string, string][];
};

test("runs are found as the server finds them", () => {
  for (const [text, keys] of searches.cases) {
    const { parts, problem } = parseSearch(text);
    assert.equal(problem, null, text);
    assert.deepEqual(searchRows(searches.rows, parts).map((item) => item.key), keys, text);
  }
});

test("an error names the part that is wrong and what to type, and the other parts count", () => {
  for (const [text, message, hint] of searches.errors) assert.deepEqual(parseSearch(text).problem, { message, hint }, text);
  for (const [text, message] of searches.unknown) assert.equal(findUnknown(searches.rows, parseSearch(text).parts), message, text);
  assert.deepEqual(parseSearch("lr>0.01 loss<").parts.map((part) => part.text), ["lr>0.01"]);
  assert.deepEqual(parseSearch('lr>0.01 tag:"two wo').parts.map((part) => part.text), ["lr>0.01"]);
});

test("a project and a status are chosen beside the search", () => {
  const keys = (project: string, status: string) => filterRows(searches.rows, { parts: [], project, status }).map((item) => item.key);
  assert.deepEqual(keys("sweep", ""), ["small", "large"]);
  assert.deepEqual(keys("sweep", "failed"), ["large"]);
});

// As the server sorts them: tests/views/data/test_run_order.py reads the same cases.
const orders = JSON.parse(readFileSync(new URL("../../tests/data/run_order.json", import.meta.url), "utf8")) as { rows: Row[]; cases: [string, string[]][] };

test("runs are sorted as the server sorts them, what is missing last", () => {
  for (const [sort, keys] of orders.cases) assert.deepEqual(sortRows(orders.rows, sort).map((item) => item.key), keys, sort);
});

test("what changed is merged into what is known", () => {
  const answer = (more: Partial<Runs>): Runs => ({ total: 2, projects: [], runs: [], version: "s-1", since: null, order: null, ...more });
  const [a, b] = [row({ key: "a" }), row({ key: "b" })];
  const known = mergeRuns(null, answer({ runs: [b, a] }));
  assert.equal(mergeRuns(known, answer({ since: "s-1" })), known, "nothing changed");
  const renamed = row({ key: "a", name: "new" });
  const merged = mergeRuns(known, answer({ since: "s-1", version: "s-2", runs: [renamed] }));
  assert.deepEqual(merged.runs, [b, renamed]);
  assert.equal(merged.runs[0], b);
  const c = row({ key: "c" });
  const fewer = mergeRuns(merged, answer({ since: "s-2", version: "s-3", runs: [c], order: ["c", "a"] }));
  assert.deepEqual(fewer.runs, [c, renamed]);
  assert.deepEqual(mergeRuns(fewer, answer({ version: "other-1", runs: [a] })).runs, [a], "another server");
});

test("runs are grouped by any column, and by each of their tags", () => {
  const rows = [row({ key: "a", tags: ["x", "y"] }), row({ key: "b" })];
  assert.deepEqual(groupRows(rows, "tags").map((group) => [group.name, group.rows.length]), [["none", 1], ["x", 1], ["y", 1]]);
});

test("columns that differ are offered before those that are the same", () => {
  const rows = [row({ config: { lr: 1, seed: 1 }, summary: { loss: 1 } }), row({ config: { lr: 2, seed: 1 }, summary: { loss: 1 } })];
  assert.deepEqual(interesting(rows, ["loss"]), ["summary.loss", "config.lr", "config.seed"]);
});

// As the command orders them: tests/views/data/test_key_metrics.py reads the same cases. The patterns are the server's.
const metrics = JSON.parse(readFileSync(new URL("../../tests/data/key_metrics.json", import.meta.url), "utf8")) as {
  ranks: [string, number][]; cases: [Row["summary"][], string[]][];
};
const home = readFileSync(new URL("../../src/trainvitals/views/data/key_metrics.py", import.meta.url), "utf8");
const validated = /^_VALIDATED = "(.*)"$/m.exec(home)![1];
const keyMetrics = [...home.matchAll(/^ {4}(?:f?"(.*)"|_VALIDATED),$/gm)].map(([, text]) => (text ?? validated).replace("{_VALIDATED}", validated));

test("the metric that most runs have comes first, under whatever name, and what few have last", () => {
  for (const [summaries, names] of metrics.cases) assert.deepEqual(orderMetrics(summaries, keyMetrics), names);
  for (const [name, rank] of metrics.ranks) {
    const lower = metrics.ranks.filter(([, other]) => other < rank).map(([other]) => other);
    const summary = Object.fromEntries([name, ...lower].map((item) => [item, 1]));
    assert.equal(orderMetrics([summary], keyMetrics).indexOf(name), lower.length, name);
  }
});

test("two columns never have the same title", () => {
  const titles = columnTitles(["config.lr", "summary.lr", "summary.loss", "config.step"], ["run", "step"]);
  assert.deepEqual([...titles.values()], ["lr (config)", "lr (last)", "loss", "step (config)"]);
});

test("names are grouped by prefix and searched by words or expression", () => {
  assert.deepEqual(groupByPrefix(["loss", "val/loss", "val/acc"]).map((group) => group.name), ["", "val"]);
  assert.deepEqual(search(["val/loss", "loss", "acc"], "val loss"), ["val/loss"]);
  assert.deepEqual(search(["val/loss", "loss"], "/^loss$/"), ["loss"]);
  assert.deepEqual(search(["a", "b/(/c"], "/(/"), ["b/(/c"]);
  assert.deepEqual(search(["block_1/attn", "block_2/attn", "block_3/attn"], "block_(1|2)/attn"), ["block_1/attn", "block_2/attn"]);
  assert.deepEqual(search(["loss (raw", "loss"], "loss (raw"), ["loss (raw"]);
  assert.deepEqual(search(["top.1", "top21"], "top.1 ^top"), ["top.1", "top21"]);
  const many = ["block_0/norm", "aux/x", "val/loss", "train/loss", "block_10/norm", "lr"];
  assert.deepEqual(groupByPrefix(many).map((group) => group.name), ["", "train", "val", "aux", "block_*"]);
  assert.deepEqual(groupByPrefix(many).at(-1)!.metrics, ["block_0/norm", "block_10/norm"]);
  assert.deepEqual(["b_10", "b_2", "a"].sort(inOrder), ["a", "b_2", "b_10"]);
  assert.deepEqual(groupByPrefix(["__proto__", "constructor/x"]).length, 2);
});

test("log scale and hidden lines are in the address, and go along to the next page", () => {
  let route = parseRoute("#/run/k/training?q=loss&from=1&to=2");
  assert.deepEqual([isLog(route, "Loss", false), isLog(route, "Gradient norm", true)], [false, true]);
  route = setLog(setLog(route, "Loss", false, true), "Gradient norm", true, false);
  route = hideLines(route, "Loss", ["train/loss", "val/loss"], new Set(["val/loss"]));
  route = hideLines(route, "Speed: all", ["rank 0", "rank 1"], new Set(["rank 1"]));
  const back = parseRoute(formatRoute(route));
  assert.deepEqual([isLog(back, "Loss", false), isLog(back, "Gradient norm", true), isLog(back, "Accuracy", false)], [true, false, false]);
  assert.deepEqual([...hiddenLines(back, "Loss", ["train/loss", "val/loss"])], ["val/loss"]);
  assert.deepEqual([...hiddenLines(back, "Speed: all", ["rank 0", "rank 1"])], ["rank 1"]);
  assert.deepEqual([...chartQuery(back).keys()].sort(), ["from", "hide", "linear", "log", "to"]);
  const plain = hideLines(hideLines(back, "Loss", ["train/loss", "val/loss"], new Set()), "Speed: all", ["rank 0", "rank 1"], new Set());
  assert.deepEqual([plain.query.has("hide"), setLog(plain, "Loss", false, false).query.has("log")], [false, false]);
});

test("what the address says comes before what is kept, and that before what is declared", () => {
  const kept = { log: ["Loss"], linear: ["Gradient norm"] };
  const plain = parseRoute("#/run/k/training");
  assert.deepEqual([isLog(plain, "Loss", false, kept), isLog(plain, "Gradient norm", true, kept), isLog(plain, "Speed", true, kept)], [true, false, true]);
  const said = parseRoute("#/run/k/training?linear=Loss&log=Gradient+norm&hide=Loss:+a");
  assert.deepEqual([isLog(said, "Loss", false, kept), isLog(said, "Gradient norm", true, kept)], [false, true]);
  assert.deepEqual([...hiddenLines(plain, "Loss", ["a", "b"], ["Loss: b"])], ["b"]);
  assert.deepEqual([...hiddenLines(said, "Loss", ["a", "b"], ["Loss: b"])], ["a"]);
});

test("GPU 2 comes before GPU 10, host by host", () => {
  const devices = [["b", 0], ["a", 10], ["a", 2]].map(([host, gpu_index]) => ({ labels: { host, gpu_index } }));
  assert.deepEqual(devices.sort(byDevice).map((item) => `${item.labels.host}${item.labels.gpu_index}`), ["a2", "a10", "b0"]);
});

test("a GPU is called the same here and in Python, and its slices are in order", () => {
  const titles = JSON.parse(readFileSync(new URL("../../tests/data/gpu_titles.json", import.meta.url), "utf8")) as [Labels, string][];
  for (const [labels, title] of titles) assert.equal(gpuTitle(labels), title);
  const slices = [10, 2].map((mig_index) => ({ labels: { gpu_index: 0, mig_index } }));
  assert.deepEqual(slices.sort(byDevice).map((item) => gpuTitle(item.labels)), ["GPU 0:2", "GPU 0:10"]);
});

test("a panel draws a metric under its alias, and a line is named by what distinguishes it", () => {
  const panel = { metrics: ["loss"] } as Panel;
  const row = (name: string, aliases: string[], beside = ""): [string, Metric] => [name, { name, aliases, beside } as Metric];
  const rows = new Map([
    row("loss", ["train_loss", "train/loss"]),
    row("rl_kl", ["kl"], "rl_response_length"),
    row("rl_response_length", ["response_length/mean"]),
    row("rl_validation_reward", ["val-core/*/mean@*"], "rl_response_length"),
  ]);
  assert.deepEqual(panelNames(panel, new Set(["train/loss"]), rows), ["train/loss"]);
  assert.equal(findSpelling("rl_kl", new Set(["kl"]), rows), undefined);
  assert.equal(findSpelling("rl_kl", new Set(["kl", "response_length/mean"]), rows), "kl");
  assert.equal(findSpelling("rl_validation_reward", new Set(["val-core/b/mean@4", "val-core/a.x/acc/mean@4", "response_length/mean"]), rows), "val-core/a.x/acc/mean@4");
  const gpus = [0, 1].map((index): Series => ({ name: "utilization_percent", labels: { gpu_index: index }, rank: null, total: 0, x: [], y: [] }));
  assert.equal(seriesTitle(gpus[1], gpus), "GPU 1");
  const band = { ...gpus[0], labels: {}, members: 64 };
  assert.equal(seriesTitle(band, [band], ["gpu_index"]), "all 64 GPUs");
  assert.equal(seriesTitle({ ...band, labels: { role: "rollout" } }, [band], ["rank"]), "all 64 rollout ranks");
});

test("thirty-two lines look different from each other, and heat goes from dark to bright", () => {
  const looks = new Set(Array.from({ length: 32 }, (_, at) => JSON.stringify(lineStyle(at, true))));
  assert.equal(looks.size, 32);
  const light = (color: number[]) => color.reduce((sum, part) => sum + part, 0);
  assert.ok(light(heat(0)) < light(heat(0.5)) && light(heat(0.5)) < light(heat(1)));
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { bands, interpolate, InlineSource, selectSeries } from "../src/data/inline.ts";
import type { ReportData, ReportRun, Resource, Series } from "../src/data/types.ts";
import { byMetric } from "../src/logic/resources.ts";

const series = (name: string, y: (number | null)[], more: Partial<Series> = {}): Series => ({
  name, labels: {}, rank: null, total: y.length, x: y.map((_, at) => at), y, ...more,
});

test("a value between two known ones lies on the line between them, beyond the ends it is the end", () => {
  assert.equal(interpolate([0, 10], [100, 200], 5), 150);
  assert.equal(interpolate([0, 10], [100, 200], -1), 100);
  assert.equal(interpolate([0, 10], [100, 200], 99), 200);
});

test("training curves of a report are drawn over time by its clock", () => {
  const item = {
    run: { started: "1970-01-01T00:16:40Z" },
    series: { training: { step: [series("loss", [3, 2, 1])] } },
    clock: { step: [0, 2], time: [1000, 1020] },
  } as unknown as ReportRun;
  const query = { names: ["loss"], table: "training", points: 10 };
  assert.deepEqual(selectSeries(item, { ...query, x: "time" })[0].x, [1000, 1010, 1020]);
  assert.deepEqual(selectSeries(item, { ...query, x: "relative" })[0].x, [0, 10, 20]);
  assert.deepEqual(selectSeries(item, { ...query, x: "step" })[0].x, [0, 1, 2]);
});

test("series of a report keep the order in which they are asked for", () => {
  const item = { run: {}, series: { training: { step: [series("a", [1]), series("b", [2])] } } } as unknown as ReportRun;
  const found = selectSeries(item, { names: ["b", "a"], table: "training", x: "step", points: 10 });
  assert.deepEqual(found.map((one) => one.name), ["b", "a"]);
});

test("many series of one name become a band, and gaps do not count", () => {
  const [band] = bands([series("u", [1, 2, null]), series("u", [3, 4, 9])]);
  assert.equal(band.members, 2);
  assert.deepEqual(band.low, [1, 2, 9]);
  assert.deepEqual(band.high, [3, 4, 9]);
  assert.deepEqual(band.y, [2, 3, 9]);
  assert.deepEqual(bands([series("alone", [1])]), [series("alone", [1])]);
});

test("the edge of a band does not jump where a series was not logged", () => {
  const even = { ...series("u", [10, 10, 10]), x: [0, 2, 4] };
  const odd = { ...series("u", [90, 90, 90]), x: [1, 3, 5] };
  const long = { ...series("u", [50, 50, 50, 50, 50, 50]), x: [0, 1, 2, 3, 4, 5] };
  const [band] = bands([even, odd, long]);
  assert.deepEqual(band.low, [10, 10, 10, 10, 10, 10]);
  assert.deepEqual(band.high, [90, 90, 90, 90, 90, 90]);
});

test("a band marks what is NaN and reaches the last step, and a part of a thinned series does not pretend to know how many", () => {
  const y = Array.from({ length: 1000 }, (_, at) => (at > 200 ? null : 1));
  const nonfinite = y.flatMap((value, at): [number, string][] => (value === null ? [[at, "NaN"]] : []));
  const rank = series("loss", y, { nonfinite, nonfinite_total: 799 });
  const [band] = bands([rank, rank]);
  assert.equal(band.nonfinite_total, 1598);
  assert.equal(band.x.at(-1), 999);
  assert.deepEqual(band.nonfinite!.at(-1), [band.x.length - 1, "NaN"]);
  assert.ok(band.y.at(-1) === null && band.low!.at(-1) === null && band.x[band.nonfinite![0][0]] > 195);
  const item = { run: {}, series: { training: { step: [{ ...rank, nonfinite_total: 5000 }] } } } as unknown as ReportRun;
  const query = { names: ["loss"], table: "training", x: "step", points: 10 };
  assert.equal(selectSeries(item, { ...query, start: 900 })[0].nonfinite_total, undefined);
  assert.equal(selectSeries(item, { ...query, end: 100 })[0].nonfinite_total, 0);
  assert.equal(selectSeries(item, { ...query, start: 0 })[0].nonfinite_total, 5000);
});

test("a comparison in a report can be asked for over time", async () => {
  const data = {
    runs: { a: { run: { started: null }, clock: { step: [0, 2], time: [50, 70] } } },
    comparison: { axis: "step", series: [{ ...series("loss", [3, 2, 1]), run: 0, key: "a" }] },
  } as unknown as ReportData;
  const found = await new InlineSource(data).compare({ runs: ["a"], names: [], x: "time", points: 10 });
  assert.equal(found.axis, "time");
  assert.deepEqual(found.series[0].x, [50, 60, 70]);
});

test("more than a few devices are one row of statistics", () => {
  const row = (at: number): Resource => ({
    subject: `GPU ${at}`, simulated: false, table: "gpu", metric: "power", unit: "W", low: at, mean: at, median: at, p95: at, high: at,
  });
  assert.equal(byMetric([0, 1].map(row)).length, 2);
  const [all] = byMetric([0, 1, 2, 3, 4].map(row));
  assert.deepEqual([all.subject, all.low, all.mean, all.high], ["all 5", 0, 2, 4]);
});

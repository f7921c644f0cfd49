import assert from "node:assert/strict";
import { test } from "node:test";
import type { Histogram, Increment, ReportRun, Series } from "../src/data/types.ts";
import { alone, breakGaps, interpolate, join, meanOfNeighbours, positive, stack } from "../src/logic/align.ts";
import { append, incrementX } from "../src/logic/append.ts";
import { histogramGrid } from "../src/logic/histograms.ts";
import { describeBroken } from "../src/logic/broken.ts";
import { smooth } from "../src/logic/smooth.ts";
import { toCsv } from "../src/logic/csv.ts";
import { selectSeries } from "../src/data/inline.ts";

const series = (more: Partial<Series>): Series => ({ name: "loss", labels: {}, rank: null, total: 0, x: [], y: [], ...more });
const increment = (more: Partial<Increment>): Increment => ({ table: "training", name: "loss", labels: {}, rank: null, time: [], y: [], ...more });

test("series with different x are joined over all x, and a missing point is not a gap", () => {
  const table = join([{ x: [1, 3], y: [10, 30] }, { x: [2, 3], y: [20, null] }]);
  assert.deepEqual(table.x, [1, 2, 3]);
  assert.deepEqual(table.columns, [[10, undefined, 30], [undefined, 20, null]]);
});

test("series with the same x are taken as they are", () => {
  assert.deepEqual(join([{ x: [1, 2], y: [1, 2] }, { x: [1, 2], y: [3, 4] }]).columns, [[1, 2], [3, 4]]);
  assert.deepEqual(join([]), { x: [], columns: [] });
});

test("a gap of one series reaches over the places of the others", () => {
  const { columns } = join([{ x: [1, 3, 5], y: [10, null, 50] }, { x: [2, 4], y: [20, 40] }]);
  assert.deepEqual(columns, [[10, null, null, null, 50], [undefined, 20, undefined, 40, undefined]]);
});

test("a line breaks where samples are missing for far longer than usual", () => {
  const known = { x: [1, 2, 3, 4, 40, 80, 81, 82], y: [1, 1, 1, 1, 2, 3, 3, 3] };
  const broken = breakGaps(known);
  assert.deepEqual(broken.x, [1, 2, 3, 4, 22, 40, 60, 80, 81, 82]);
  assert.deepEqual(broken.y, [1, 1, 1, 1, null, 2, null, 3, 3, 3]);
  assert.deepEqual(alone(broken.y), [5], "what no line reaches is drawn as a dot");
  const late = { x: [1, 2, 3, 7, 8, 9], y: [1, 1, 1, 1, 1, 1] };
  assert.equal(breakGaps(late), late);
  assert.equal(breakGaps({ x: [0, 1, 100, 101, 200, 201, 300, 301], y: [] }).x.length, 8, "a thinned curve");
  assert.equal(breakGaps({ x: [1, 900], y: [1, 2] }).x.length, 2);
});

test("a value is alone where nothing is known on either side", () => {
  assert.deepEqual(alone([1, undefined, 2, null, 3, undefined, null, 4]), [4, 7]);
  assert.deepEqual(alone([]), []);
});

test("a stack adds up, with values between the points of a thinned series", () => {
  const table = stack([series({ x: [0, 2], y: [1, 3] }), series({ x: [0, 1, 2], y: [1, 1, 1] })]);
  assert.deepEqual(table.columns, [[1, 2, 3], [2, 3, 4]]);
  assert.deepEqual(interpolate([1], [5], [0, 1, 2]), [null, 5, null]);
});

test("a logarithmic axis leaves out zero and below", () => {
  assert.deepEqual(positive([1, 0, -1, null, undefined]), [1, null, null, null, undefined]);
});

test("smoothing keeps a constant and a trend, to both ends, and does not care how densely points lie", () => {
  const x = Array.from({ length: 100 }, (_, at) => at);
  assert.ok(Math.abs(smooth(x, x.map(() => 7), 0.5).at(-1)! - 7) < 1e-9);
  const line = smooth(x, x.map((at) => 3 * at + 5), 0.5);
  assert.ok(line.every((value, at) => Math.abs(value! - (3 * at + 5)) < 1e-6), "it does not lag");
  const wave = smooth(x, x.map((at) => Math.sin(at / 20)), 0.5);
  const thin = x.filter((at) => at % 2 === 0);
  const half = smooth(thin, thin.map((at) => Math.sin(at / 20)), 0.5);
  assert.ok(half.every((value, at) => Math.abs(value! - wave[2 * at]!) < 0.1));
});

test("a smoothed curve is less noisy and stays within what was logged", () => {
  const x = Array.from({ length: 400 }, (_, at) => at);
  const zigzag = x.map((at) => (at % 2 ? 1 : -1));
  assert.ok(smooth(x, zigzag, 0.15).slice(50, 350).every((value) => Math.abs(value!) < 0.1));
  const spike = smooth(x, x.map((at) => (at === 399 ? 100 : 1)), 0.15);
  assert.ok(spike.every((value) => value! >= 1 && value! <= 100));
});

test("smoothing passes over NaN and is nothing at strength 0", () => {
  assert.deepEqual(smooth([0, 1, 2], [1, null, 3], 0), [1, null, 3]);
  assert.equal(smooth([0, 1, 2], [1, null, 3], 1)[1], null);
});

test("what is NaN or infinite is counted before points are left out", () => {
  const thinned = series({ x: [1, 2], y: [null, 1], nonfinite: [[0, "NaN"]], nonfinite_total: 39_999 });
  assert.equal(describeBroken([thinned, series({ x: [1], y: [1] })]), "39,999 NaN");
  assert.equal(describeBroken([thinned, series({ x: [1], y: [null], nonfinite: [[0, "-Infinity"]], nonfinite_total: 1 })]), "40,000 NaN or ∞");
  assert.equal(describeBroken([series({ x: [1], y: [null], nonfinite: [[0, "NaN"]] })]), "at least 1 NaN");
  assert.equal(describeBroken([series({ x: [1], y: [1] })]), "");
});

test("live points are added at the end, with NaN at the right place", () => {
  const known = series({ x: [1, 2], y: [5, 6], total: 2, nonfinite_total: 0 });
  const grown = append(known, increment({ step: [3, 4], time: [10, 11], y: [7, null], nonfinite: [[1, "NaN"]] }), "step", 0)!;
  assert.deepEqual(grown.x, [1, 2, 3, 4]);
  assert.deepEqual(grown.nonfinite, [[3, "NaN"]]);
  assert.equal(grown.total, 4);
  assert.equal(grown.nonfinite_total, 1);
  assert.deepEqual(known.x, [1, 2]);
});

test("a step that goes back asks for everything again; the same point twice is one point", () => {
  const known = series({ x: [5], y: [1], total: 1 });
  assert.equal(append(known, increment({ step: [3], time: [1], y: [2] }), "step", 0), null);
  assert.equal(append(known, increment({ step: [5], time: [1], y: [1] }), "step", 0), known);
});

test("points that came while the answer was under way are added once", () => {
  const known = series({ x: [1, 5], y: [1, 1] });
  const late = increment({ step: [3, 5, 6], time: [1, 2, 3], y: [2, 1, 4] });
  assert.deepEqual(append(known, late, "step", 0, true)!.x, [1, 5, 6]);
  assert.equal(append(known, increment({ step: [3, 5], time: [1, 2], y: [2, 1] }), "step", 0, true), known);
});

test("an increment without steps has no place on a step axis", () => {
  assert.deepEqual(incrementX(increment({ time: [5] }), "step", 0), [null]);
  assert.deepEqual(incrementX(increment({ time: [5] }), "relative", 2), [3]);
});

test("the CSV has every shown value, spells NaN, and disarms formulas", () => {
  const text = toCsv("step", [series({ x: [1, 2], y: [0.5, null], nonfinite: [[1, "NaN"]] })], ['=cmd|"x"']);
  assert.equal(text, `step,"'=cmd|""x"""\n1,0.5\n2,NaN\n`);
});

test("a report answers like the server: axis, range and rank", () => {
  const item = {
    run: { started: "1970-01-01T00:00:10Z" },
    series: { training: { step: [series({ x: [1, 2, 3], y: [1, null, 3], nonfinite: [[1, "NaN"]] })], time: [series({ x: [11, 12, 13], y: [1, 2, 3] })] } },
  } as unknown as ReportRun;
  const cut = selectSeries(item, { names: ["loss"], table: "training", x: "step", start: 2, points: 9 });
  assert.deepEqual(cut[0].x, [2, 3]);
  assert.deepEqual(cut[0].nonfinite, [[0, "NaN"]]);
  assert.deepEqual(selectSeries(item, { names: ["loss"], table: "training", x: "relative", points: 9 })[0].x, [1, 2, 3]);
  assert.deepEqual(selectSeries(item, { names: ["loss"], table: "__proto__", x: "step", points: 9 }), []);
});

test("histograms with other bins than the grid lose nothing and leave no empty row", () => {
  const histogram: Histogram = { step: 0, low: -1, high: 1, counts: [1, 2, 4, 2, 1], nonfinite: 0 };
  const grid = histogramGrid([histogram], 12);
  const column = grid.values.map((row) => row[0]);
  assert.ok(column.every((value) => value !== null));
  assert.ok(Math.abs(column.reduce<number>((sum, value) => sum + value!, 0) - 1) < 1e-9);
});

test("a single value has a histogram too", () => {
  const grid = histogramGrid([{ step: 0, low: 3, high: 3, counts: [5], nonfinite: 0 }], 4);
  assert.equal(grid.values.flat().reduce<number>((sum, value) => sum + (value ?? 0), 0), 1);
});

test("a long part of a whole is drawn by its means", () => {
  const x = Array.from({ length: 600 }, (_, at) => at);
  const thin = meanOfNeighbours({ name: "data_time", labels: {}, rank: null, total: 600, x, y: x.map((at) => at % 2) });
  assert.ok(thin.x.length <= 150);
  assert.ok(thin.y.every((value) => value === 0.5));
});

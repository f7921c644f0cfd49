import assert from "node:assert/strict";
import { test } from "node:test";
import { lineAt, nearestPlace, paintedLines, paintLine, pinnedLines, rangeOfY, showLines, shownLines, togglePin, valueAt } from "../src/logic/lines.ts";
import { formatRoute, parseRoute } from "../src/logic/route.ts";

const route = parseRoute("#/runs?view=charts&q=lr%3E0.1");
const ids = Array.from({ length: 200 }, (_, at) => `run:${at}`);

test("which lines are shown is in the address by the fewer of both", () => {
  const without = showLines(route, ids, new Set(ids.slice(1)));
  assert.deepEqual(without.query.get("off"), ["run:0"]);
  const single = showLines(without, ids, new Set(["run:7"]));
  assert.deepEqual([single.query.get("on"), single.query.get("off")], [["run:7"], undefined]);
  for (const shown of [new Set<string>(), new Set(ids), new Set(["run:3"]), new Set(ids.slice(0, 150))]) {
    const kept = parseRoute(formatRoute(showLines(route, ids, shown)));
    assert.deepEqual(shownLines(kept, ids), shown);
    assert.equal(kept.query.get("q")?.[0], "lr>0.1");
  }
});

test("pins and colours come back from the address, also of a name with a colon", () => {
  const painted = parseRoute(formatRoute(paintLine(togglePin(route, "a:b"), "a:b", 3)));
  assert.deepEqual([pinnedLines(painted), paintedLines(painted)], [new Set(["a:b"]), new Map([["a:b", 3]])]);
  assert.equal(pinnedLines(togglePin(painted, "a:b")).size, 0);
  assert.equal(paintedLines(parseRoute("#/runs?paint=x:y&paint=-1:z&paint=:q")).size, 0);
});

const line = { x: [0, 10, 20, 30], y: [1, null, 3, 5] };

test("the range is that of what is seen, with bands, and positive on a logarithmic axis", () => {
  assert.deepEqual(rangeOfY([line], 0, 30, false), [1, 5]);
  assert.deepEqual(rangeOfY([line], 15, 25, false), [3, 3]);
  assert.equal(rangeOfY([line], 40, 50, false), null);
  const band = { ...line, low: [-1, null, 0.5, null], high: [2, null, 9, null] };
  assert.deepEqual(rangeOfY([band], 0, 30, false), [-1, 9]);
  assert.deepEqual(rangeOfY([band], 0, 30, true), [0.5, 9]);
});

test("a value is only pointed at where the line has one", () => {
  assert.equal(nearestPlace(line, 1, 0), 0);
  assert.equal(nearestPlace(line, 24, 0), 2);
  assert.equal(nearestPlace(line, 31, 0), -1);
  assert.equal(nearestPlace(line, 31, 2), 3);
  assert.equal(nearestPlace({ x: [], y: [] }, 1, 5), -1);
  assert.equal(valueAt(line, 25, 0), 4);
  assert.equal(valueAt(line, 5, 0), 1);
});

test("of many lines the nearest is found, and none that is far", () => {
  const lines = [0, 1, 2].map((level) => ({ x: [0, 10], y: [level, level] }));
  const toPixel = (y: number) => 100 - y * 40;
  assert.equal(lineAt(lines, 5, 0, toPixel, 62, 30), 1);
  assert.equal(lineAt(lines, 5, 0, toPixel, 200, 30), -1);
});

// Series with their own x become columns over one x, as uPlot wants them.
import type { Series } from "../data/types.ts";

export type Column = (number | null | undefined)[];

export interface Table {
  x: number[];
  columns: Column[];
}

// The union of all x; undefined where a series has no point, which uPlot draws through.
export function join(series: { x: ArrayLike<number>; y: ArrayLike<number | null> }[]): Table {
  if (series.length === 1) return { x: Array.from(series[0].x), columns: [Array.from(series[0].y)] };
  if (series.every((item) => sameX(item.x, series[0].x))) {
    return { x: Array.from(series[0]?.x ?? []), columns: series.map((item) => Array.from(item.y)) };
  }
  const all = new Set<number>();
  for (const item of series) for (let at = 0; at < item.x.length; at++) all.add(item.x[at]);
  const x = Float64Array.from(all).sort();
  const columns = series.map((item) => {
    const column: Column = new Array(x.length).fill(undefined);
    let place = 0;
    for (let at = 0; at < item.x.length; at++) {
      while (x[place] < item.x[at]) place++;
      column[place] = item.y[at];
    }
    return widenGaps(column);
  });
  return { x: Array.from(x), columns };
}

// A gap reaches from value to value: uPlot would draw through the places in it that are of other series only.
function widenGaps(column: Column): Column {
  let last = -1;
  let isBroken = false;
  for (let at = 0; at < column.length; at++) {
    if (column[at] === null) isBroken = true;
    if (typeof column[at] !== "number") continue;
    if (isBroken && last >= 0) column.fill(null, last + 1, at);
    [last, isBroken] = [at, false];
  }
  return column;
}

const MUCH_LONGER = 5;

// The same points with a break where samples are missing for far longer than usual: a line across would show what nobody
// measured. The terminal and the pictures do the same in analysis/gaps.py.
export function breakGaps<T extends { x: ArrayLike<number>; y: ArrayLike<number | null> }>(series: T): T | { x: number[]; y: (number | null)[] } {
  const { x, y } = series;
  if (x.length < 3) return series;
  const between = Float64Array.from({ length: x.length - 1 }, (_, at) => x[at + 1] - x[at]);
  // Over two samples: each piece of a thinned curve has its lowest and its highest, which are often neighbours.
  const pairs = Float64Array.from({ length: x.length - 2 }, (_, at) => x[at + 2] - x[at]).sort();
  const longest = (MUCH_LONGER * pairs[Math.floor((pairs.length - 1) / 2)]) / 2 + 1e-9;
  if (!between.some((distance) => distance > longest)) return series;
  const broken: { x: number[]; y: (number | null)[] } = { x: [], y: [] };
  for (let at = 0; at < x.length; at++) {
    broken.x.push(x[at]);
    broken.y.push(y[at]);
    if (between[at] > longest) (broken.x.push(x[at] + between[at] / 2), broken.y.push(null));
  }
  return broken;
}

// The places of a column that no line reaches: nothing is known on either side.
export function alone(column: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  let first = -1; // where the stretch of values began
  let last = -1; // and where it is now
  for (let at = 0; at <= column.length; at++) {
    const value = at < column.length ? column[at] : null;
    if (value === undefined) continue;
    if (value !== null) {
      if (first < 0) first = at;
      last = at;
    } else {
      if (first >= 0 && first === last) found.push(first);
      first = -1;
    }
  }
  return found;
}

function sameX(a: ArrayLike<number>, b: ArrayLike<number>): boolean {
  if (a.length !== b.length) return false;
  if (a === b) return true;
  for (let at = 0; at < a.length; at++) if (a[at] !== b[at]) return false;
  return true;
}

// Values between two points on the straight line through them; null outside.
export function interpolate(x: ArrayLike<number>, y: ArrayLike<number | null>, wanted: number[]): (number | null)[] {
  const found: (number | null)[] = [];
  let at = 0;
  for (const place of wanted) {
    while (at < x.length - 1 && x[at + 1] <= place) at++;
    if (!x.length || place < x[0] || place > x[x.length - 1]) {
      found.push(null);
      continue;
    }
    const left = y[at];
    const right = at + 1 < x.length ? y[at + 1] : left;
    if (left === null || right === null || x[at] === place || at + 1 >= x.length) {
      found.push(left);
      continue;
    }
    found.push(left + ((right - left) * (place - x[at])) / (x[at + 1] - x[at]));
  }
  return found;
}

const PIECES = 150;

// At most so many points, each the mean of its neighbours; for parts of a whole.
export function meanOfNeighbours(series: Series): Series {
  const size = Math.ceil(series.x.length / PIECES);
  if (size < 2) return series;
  const x: number[] = [];
  const y: (number | null)[] = [];
  for (let at = 0; at < series.x.length; at += size) {
    const known = series.y.slice(at, at + size).filter((value): value is number => value !== null);
    const places = series.x.slice(at, at + size);
    x.push(places.reduce((sum, value) => sum + value, 0) / places.length);
    y.push(known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null);
  }
  return { ...series, x, y };
}

// Each series on top of the ones before; a missing part counts as nothing.
export function stack(series: Series[]): Table {
  const all = new Set<number>();
  for (const item of series) for (const x of item.x) all.add(x);
  const x = [...all].sort((a, b) => a - b);
  const total = new Array<number>(x.length).fill(0);
  const columns = series.map((item) => {
    const values = interpolate(item.x, item.y, x);
    return values.map((value, at) => (total[at] += value ?? 0));
  });
  return { x, columns };
}

// A logarithmic axis has no place for zero and less.
export function positive(column: Column): Column {
  return column.map((value) => (typeof value === "number" && value <= 0 ? null : value));
}

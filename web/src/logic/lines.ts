// Many lines in one chart: which are shown and pinned, in which colour, what range they need, and which is pointed at.
import { withQuery, type Route } from "./route.ts";

export interface Drawable {
  x: ArrayLike<number>;
  y: ArrayLike<number | null>;
  low?: ArrayLike<number | null>;
  high?: ArrayLike<number | null>;
}

// -- in the address: `off` has the hidden ones, or `on` the shown ones, whichever are fewer; `pin`, and `paint` as COLOUR:ID

export function shownLines(route: Route, ids: string[]): Set<string> {
  const on = route.query.get("on");
  if (on) return new Set(ids.filter((id) => on.includes(id)));
  const off = new Set(route.query.get("off") ?? []);
  return new Set(ids.filter((id) => !off.has(id)));
}

export function showLines(route: Route, ids: string[], shown: ReadonlySet<string>): Route {
  const on = ids.filter((id) => shown.has(id));
  const off = ids.filter((id) => !shown.has(id));
  // No line at all is "on" with an id that nothing has.
  return off.length <= on.length ? withQuery(route, { on: undefined, off }) : withQuery(route, { on: on.length ? on : [""], off: undefined });
}

export function pinnedLines(route: Route): Set<string> {
  return new Set(route.query.get("pin") ?? []);
}

export function togglePin(route: Route, id: string): Route {
  const pins = route.query.get("pin") ?? [];
  return withQuery(route, { pin: pins.includes(id) ? pins.filter((item) => item !== id) : [...pins, id] });
}

export function paintedLines(route: Route): Map<string, number> {
  const found = new Map<string, number>();
  for (const item of route.query.get("paint") ?? []) {
    const mark = item.indexOf(":");
    const color = Number(item.slice(0, mark));
    if (mark > 0 && Number.isInteger(color) && color >= 0) found.set(item.slice(mark + 1), color);
  }
  return found;
}

export function paintLine(route: Route, id: string, color: number): Route {
  const painted = paintedLines(route).set(id, color);
  return withQuery(route, { paint: [...painted].map(([key, value]) => `${value}:${key}`) });
}

// -- what a chart needs to know

// The lowest and highest value within a range of x; null if there is none.
export function rangeOfY(lines: Drawable[], start: number, end: number, log: boolean): [number, number] | null {
  let low = Infinity;
  let high = -Infinity;
  const look = (value: number | null | undefined) => {
    if (value === null || value === undefined || (log && value <= 0)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const line of lines) {
    for (let at = Math.max(placeOf(line.x, start) - 1, 0); at < line.x.length; at++) {
      if (line.x[at] < start) continue;
      if (line.x[at] > end) break;
      look(line.y[at]);
      if (line.low && line.high) {
        look(line.low[at]);
        look(line.high[at]);
      }
    }
  }
  return low <= high ? [low, high] : null;
}

// The first place whose x is not below.
export function placeOf(x: ArrayLike<number>, wanted: number): number {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The place of the finite value nearest in x; -1 beyond the ends of the line or if there is none near.
export function nearestPlace(line: Drawable, x: number, slack: number): number {
  if (!line.x.length || x < line.x[0] - slack || x > line.x[line.x.length - 1] + slack) return -1;
  const after = Math.min(placeOf(line.x, x), line.x.length - 1);
  const before = Math.max(after - 1, 0);
  const order = Math.abs(line.x[before] - x) <= Math.abs(line.x[after] - x) ? [before, after] : [after, before];
  return order.find((at) => line.y[at] !== null) ?? -1;
}

// Of all lines the one that is drawn nearest to a point, at most `reach` pixels above or below.
export function lineAt(lines: Drawable[], x: number, slack: number, toPixel: (y: number) => number, top: number, reach: number): number {
  let best = -1;
  let distance = reach;
  lines.forEach((line, at) => {
    const y = valueAt(line, x, slack);
    if (y === null) return;
    const off = Math.abs(toPixel(y) - top);
    if (off < distance) [best, distance] = [at, off];
  });
  return best;
}

// Where the line is drawn at x, between two values in a straight line.
export function valueAt(line: Drawable, x: number, slack: number): number | null {
  const near = nearestPlace(line, x, slack);
  if (near < 0) return null;
  const other = line.x[near] <= x ? near + 1 : near - 1;
  const [y, next] = [line.y[near], line.y[other]];
  if (y === null || next === null || next === undefined || line.x[other] === line.x[near]) return y;
  return y + ((next - y) * (x - line.x[near])) / (line.x[other] - line.x[near]);
}

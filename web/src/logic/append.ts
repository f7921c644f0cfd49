// Live points added to what a chart already shows.
import type { Increment, Labels, Series } from "../data/types.ts";

export function sameLabels(a: Labels, b: Labels): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => a[key] === b[key]);
}

export function isSame(series: Series, increment: Increment): boolean {
  return (
    series.name === increment.name &&
    (series.rank ?? null) === (increment.rank ?? null) &&
    sameLabels(series.labels, increment.labels)
  );
}

// x of an increment on the chart's axis; null where it has none.
export function incrementX(increment: Increment, axis: string, origin: number): (number | null)[] {
  if (axis === "time") return increment.time;
  if (axis === "relative") return increment.time.map((time) => time - origin);
  if (axis === "step") return increment.step ?? increment.time.map(() => null);
  return increment.time.map(() => null);
}

// The series with the new points, or null if they cannot simply be added (a step that goes back: read again).
// With `overlaps`, points up to the end of the series are in it already.
export function append(series: Series, increment: Increment, axis: string, origin: number, overlaps = false): Series | null {
  const xs = incrementX(increment, axis, origin);
  const end = overlaps && series.x.length ? series.x[series.x.length - 1] : -Infinity;
  let last = series.x.length ? series.x[series.x.length - 1] : -Infinity;
  const x: number[] = [];
  const y: (number | null)[] = [];
  const nonfinite: [number, string][] = [];
  const words = new Map(increment.nonfinite ?? []);
  for (let at = 0; at < xs.length; at++) {
    const place = xs[at];
    if (place === null || place <= end) continue;
    if (place < last) return null;
    if (place === last && series.x.length && y.length === 0 && series.y[series.y.length - 1] === increment.y[at]) continue;
    const word = words.get(at);
    if (word !== undefined) nonfinite.push([series.x.length + x.length, word]);
    x.push(place);
    y.push(increment.y[at]);
    last = place;
  }
  if (!x.length) return series;
  return {
    ...series,
    total: series.total + x.length,
    nonfinite_total: series.nonfinite_total === undefined ? undefined : series.nonfinite_total + nonfinite.length,
    x: series.x.concat(x),
    y: series.y.concat(y),
    nonfinite: nonfinite.length ? [...(series.nonfinite ?? []), ...nonfinite] : series.nonfinite,
  };
}

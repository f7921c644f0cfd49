// A sweep: where each run lies on the scale of each parameter, and which runs lie within all chosen ranges.
import { toNumber } from "./format.ts";
import type { Value } from "../data/types.ts";

export interface Scale {
  key: string;
  kind: "linear" | "log" | "category";
  // Of numbers, the ends; of categories, their names from the bottom.
  low: number;
  high: number;
  names: string[];
}

const MOST_NAMES = 40;
const LOG_FROM = 10; // highest by lowest, from which on a positive scale is logarithmic

// The scale on which these values are best seen; null if they do not differ or have too many names.
export function scaleOf(key: string, values: unknown[]): Scale | null {
  const known = values.filter((value) => value !== null && value !== undefined);
  const numbers = known.map((value) => (typeof value === "number" ? value : null));
  if (known.length && numbers.every((value): value is number => value !== null && Number.isFinite(value))) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of numbers as number[]) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low === high) return null;
    return { key, kind: low > 0 && high / low >= LOG_FROM ? "log" : "linear", low, high, names: [] };
  }
  const names = [...new Set(known.map(nameOf))].sort(new Intl.Collator(undefined, { numeric: true }).compare);
  return names.length < 2 || names.length > MOST_NAMES ? null : { key, kind: "category", low: 0, high: names.length - 1, names };
}

export function nameOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// From 0 at the low end to 1 at the high end; null where there is no value.
export function shareOf(scale: Scale, value: unknown): number | null {
  if (value === null || value === undefined) return null;
  if (scale.kind === "category") {
    const at = scale.names.indexOf(nameOf(value));
    return at < 0 ? null : (at + 0.5) / scale.names.length;
  }
  const number = toNumber(value as Value);
  if (number === null || !Number.isFinite(number)) return null;
  if (scale.kind === "linear") return (number - scale.low) / (scale.high - scale.low);
  return number > 0 ? Math.log(number / scale.low) / Math.log(scale.high / scale.low) : null;
}

// The value at a share of a scale of numbers.
export function valueAt(scale: Scale, share: number): number {
  return scale.kind === "log" ? scale.low * (scale.high / scale.low) ** share : scale.low + (scale.high - scale.low) * share;
}

export type Brushes = ReadonlyMap<string, readonly [number, number]>;

// Whether a run lies within all chosen ranges: it must have a value on each of these axes.
export function isWithin(scales: Scale[], shares: (number | null)[], brushes: Brushes): boolean {
  return scales.every((scale, at) => {
    const range = brushes.get(scale.key);
    const share = shares[at];
    return !range || (share !== null && share >= range[0] && share <= range[1]);
  });
}

// The ranges in the address: `brush=LOW:HIGH:KEY`, as shares of the axis.
export function parseBrushes(texts: string[]): Map<string, [number, number]> {
  const found = new Map<string, [number, number]>();
  for (const text of texts) {
    const [low, high, ...key] = text.split(":");
    const range: [number, number] = [Number(low), Number(high)];
    if (key.length && range.every(Number.isFinite) && range[0] < range[1]) found.set(key.join(":"), range);
  }
  return found;
}

export function formatBrushes(brushes: Brushes): string[] {
  return [...brushes].map(([key, [low, high]]) => `${+low.toFixed(4)}:${+high.toFixed(4)}:${key}`);
}

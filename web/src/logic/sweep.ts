// A sweep: where each run lies on the scale of each parameter, and which runs lie within all chosen ranges.
import { formatShort, toNumber } from "./format.ts";
import type { Value } from "../data/types.ts";

export interface Scale {
  // A column of the runs table: config.KEY or summary.NAME.
  key: string;
  kind: "linear" | "log" | "category";
  // Of numbers, the ends; of categories, their names from the bottom.
  low: number;
  high: number;
  names: string[];
  // All values there are, ascending, if they are few numbers.
  few: number[];
}

const MOST_NAMES = 40;
const FEW = 9;
const LOG_FROM = 10; // highest by lowest, from which on a positive scale is logarithmic

// The scale on which these values are best seen; null if they do not differ or have too many names.
export function scaleOf(key: string, values: unknown[]): Scale | null {
  const known = values.filter((value) => value !== null && value !== undefined);
  const numbers = known.map((value) => (typeof value === "number" ? value : null));
  if (known.length && numbers.every((value): value is number => value !== null && Number.isFinite(value))) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of numbers as number[]) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low === high) return null;
    const different = [...new Set(numbers as number[])];
    return { key, kind: low > 0 && high / low >= LOG_FROM ? "log" : "linear", low, high, names: [], few: different.length <= FEW ? different.sort((a, b) => a - b) : [] };
  }
  const names = [...new Set(known.map(nameOf))].sort(new Intl.Collator(undefined, { numeric: true }).compare);
  return names.length < 2 || names.length > MOST_NAMES ? null : { key, kind: "category", low: 0, high: names.length - 1, names, few: [] };
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

// Apart from others of the same category, always in the same place: -0.5 to 0.5.
function jitterOf(text: string): number {
  let hash = 2166136261;
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 16777619);
  hash = Math.imul(hash ^ (hash >>> 15), 2246822519);
  return ((hash ^ (hash >>> 13)) >>> 0) / 2 ** 32 - 0.5;
}

// As shareOf, with the dots of a category beside each other: `run` says which dot it is.
export function spreadShareOf(scale: Scale, value: unknown, run: string): number | null {
  const share = shareOf(scale, value);
  return share === null || scale.kind !== "category" ? share : share + (jitterOf(run) * 0.6) / scale.names.length;
}

// The value at a share of a scale of numbers.
export function valueAt(scale: Scale, share: number): number {
  return scale.kind === "log" ? scale.low * (scale.high / scale.low) ** share : scale.low + (scale.high - scale.low) * share;
}

export type Tick = [label: string, share: number];

// Every category and every one of few numbers by itself; else the ends as they are, and round numbers between them. The
// ends stay where others would be nearer to each other than `least`, as a share of the axis.
export function ticksOf(scale: Scale, pieces: number, least: number): Tick[] {
  const all = allTicks(scale, pieces);
  const last = all[all.length - 1];
  const kept: Tick[] = [];
  for (const tick of all) {
    const isNear = kept.length > 0 && (tick[1] - kept[kept.length - 1][1] < least || last[1] - tick[1] < least);
    if (!isNear || tick === last) kept.push(tick);
  }
  return kept;
}

function allTicks(scale: Scale, pieces: number): Tick[] {
  if (scale.kind === "category") return scale.names.map((name, at) => [name, (at + 0.5) / scale.names.length]);
  if (scale.few.length) return scale.few.map((value) => [formatTick(value), shareOf(scale, value)!]);
  return Array.from({ length: pieces + 1 }, (_, at): Tick => {
    if (at === 0 || at === pieces) return [formatTick(at ? scale.high : scale.low), at ? 1 : 0];
    const value = +valueAt(scale, at / pieces).toPrecision(2);
    return [formatTick(value), shareOf(scale, value)!];
  });
}

// Four digits, and whole numbers as they are.
export function formatTick(value: number): string {
  return Number.isInteger(value) && Math.abs(value) < 1e5 ? String(value) : formatShort(+value.toPrecision(4));
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

// A range after one end of it was moved by one step; null once it is the whole axis.
export function stepBrush(scale: Scale, range: readonly [number, number] | undefined, end: "low" | "high", way: 1 | -1): [number, number] | null {
  const step = scale.kind === "category" ? 1 / scale.names.length : 0.05;
  let [low, high] = range ?? [0, 1];
  if (end === "low") low = Math.min(Math.max(low + way * step, 0), high - step);
  else high = Math.max(Math.min(high + way * step, 1), low + step);
  // Sums of steps are not quite whole.
  return low < 1e-6 && high > 1 - 1e-6 ? null : [Math.max(low, 0), Math.min(high, 1)];
}

// The same keys with one of them at another place.
export function moveKey(keys: string[], key: string, place: number): string[] {
  const rest = keys.filter((item) => item !== key);
  return [...rest.slice(0, Math.max(place, 0)), key, ...rest.slice(Math.max(place, 0))];
}

export function formatBrushes(brushes: Brushes): string[] {
  return [...brushes].map(([key, [low, high]]) => `${+low.toFixed(4)}:${+high.toFixed(4)}:${key}`);
}

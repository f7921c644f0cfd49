// How much of the machine a model uses: what it computes in a second against what it computes with each byte, both
// on scales of decades, under the roof of what the machine can do at most.
import type { MeasuredVariant, Peak } from "../data/types.ts";
import type { Frame } from "./tradeoff.ts";

export interface Point {
  x: number;
  y: number;
}

export interface Dot extends Point {
  batch: number;
  rate: number; // FLOP/s
  intensity: number; // FLOP per byte
  share: number; // of what the roof allows at this intensity
}

export interface Roofline {
  roof: Point[];
  peak: number;
  lines: { name: string; dots: Dot[] }[];
  across: { value: number; at: number }[];
  upwards: { value: number; at: number }[];
}

const ROOM = 1.6; // beyond the outermost, as a factor

// With the threads of the first row: each number of them has a roof of its own.
export function roofline(rows: MeasuredVariant[], peaks: Peak[], frame: Frame): Roofline | null {
  const known = rows.filter((row) => row.flops && row.bytes_moved && millisecondsOf(row) && row.threads === rows[0].threads);
  const top = peaks.find((peak) => peak.threads === known[0]?.threads);
  if (!known.length || !top?.flops_per_second || !top.bytes_per_second) return null;
  const peak = top.flops_per_second, width = top.bytes_per_second, ridge = peak / width;
  const found = known.map((row) => ({ row, rate: row.flops! / (millisecondsOf(row)! / 1000), intensity: row.flops! / row.bytes_moved! }));
  const intensities = [ridge, ...found.map((item) => item.intensity)], rates = [peak, ...found.map((item) => item.rate)];
  const left = Math.min(...intensities) / ROOM, right = Math.max(...intensities) * ROOM;
  const low = Math.min(...rates, left * width) / ROOM, high = Math.max(...rates) * ROOM;
  const across = scale(left, right, frame.left, frame.right), upwards = scale(low, high, frame.bottom, frame.top);
  const lines = [...new Set(known.map((row) => row.variant ?? ""))].map((name) => ({
    name,
    dots: found.filter((item) => item.row.variant === name).map(({ row, rate, intensity }) =>
      ({ x: across(intensity), y: upwards(rate), batch: row.batch, rate, intensity, share: rate / Math.min(peak, intensity * width) })),
  }));
  return {
    roof: [[left, left * width], [ridge, peak], [right, peak]].map(([x, y]) => ({ x: across(x), y: upwards(y) })),
    peak,
    lines,
    across: marks(left, right).map((value) => ({ value, at: across(value) })),
    upwards: marks(low, high).map((value) => ({ value, at: upwards(value) })),
  };
}

// A generator's are those of the prompt, whose work was counted.
function millisecondsOf(row: MeasuredVariant): number | undefined {
  return row.generation ? row.generation.first_token : row.latency?.median;
}

function scale(low: number, high: number, from: number, to: number): (value: number) => number {
  return (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low);
}

// Powers of ten, and 2 and 5 times these where there are few.
function marks(low: number, high: number): number[] {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const tens = Array.from({ length: last - first + 1 }, (_, at) => 10 ** (first + at));
  const within = (values: number[]) => values.filter((value) => value >= low && value <= high);
  return within(tens).length > 2 ? within(tens) : within(tens.flatMap((value) => [value, 2 * value, 5 * value]));
}

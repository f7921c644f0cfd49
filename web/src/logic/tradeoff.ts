// Where the variants of a model lie between speed, exactness and size.
import type { MeasuredVariant } from "../data/types.ts";
import { splitLinear } from "./format.ts";

export interface Spot {
  name: string;
  latency: number;
  error: number;
  size: number;
  x: number;
  y: number;
  radius: number;
}

export interface Frame {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Tick {
  value: number;
  at: number;
}

export interface TradeOff {
  spots: Spot[];
  across: Tick[];
  upwards: Tick[];
  // Variants whose error was not measured.
  missing: string[];
}

const LARGEST = 16, SMALLEST = 4;

// One batch size and number of threads, those of the first row: others are not comparable. The scales begin at 0.
export function tradeOff(rows: MeasuredVariant[], frame: Frame): TradeOff {
  const alike = rows.filter((row) => row.batch === rows[0].batch && row.threads === rows[0].threads && row.latency?.median !== undefined);
  const known = alike.flatMap((row) => {
    const error = errorOf(row);
    return error === null ? [] : [{ name: row.variant ?? "", latency: row.latency!.median!, error, size: row.disk_mb ?? 0 }];
  });
  const most = (pick: (spot: (typeof known)[number]) => number) => Math.max(...known.map(pick), 0);
  const slowest = most((spot) => spot.latency), worst = most((spot) => spot.error), largest = most((spot) => spot.size) || 1;
  const toX = (latency: number) => frame.left + (frame.right - frame.left - LARGEST) * (latency / (slowest || 1));
  const toY = (error: number) => frame.bottom - (frame.bottom - frame.top - LARGEST) * (error / (worst || 1));
  const ticks = (high: number, place: (value: number) => number) => (high ? splitLinear(0, high) : [0]).map((value) => ({ value, at: place(value) }));
  return {
    spots: known.map((spot) => ({ ...spot, x: toX(spot.latency), y: toY(spot.error), radius: Math.max(LARGEST * Math.sqrt(spot.size / largest), SMALLEST) })),
    across: ticks(slowest, toX),
    upwards: ticks(worst, toY),
    missing: alike.filter((row) => errorOf(row) === null).map((row) => row.variant ?? ""),
  };
}

// The others are compared with the reference, which has none.
function errorOf(row: MeasuredVariant): number | null {
  if (row.reference) return 0;
  return typeof row.agreement?.relative_error === "number" ? row.agreement.relative_error : null;
}

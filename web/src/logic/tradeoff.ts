// Where the variants of a model lie between speed, exactness and size.
import type { MeasuredVariant } from "../data/types.ts";

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

const LARGEST = 16, SMALLEST = 4;

// One batch size and number of threads, those of the first row: others are not comparable. The scales begin at 0.
export function tradeOff(rows: MeasuredVariant[], frame: Frame): Spot[] {
  const alike = rows.filter((row) => row.batch === rows[0].batch && row.threads === rows[0].threads && row.latency?.median !== undefined);
  const errorOf = (row: MeasuredVariant) => (typeof row.agreement?.relative_error === "number" ? row.agreement.relative_error : 0);
  const most = (pick: (row: MeasuredVariant) => number) => Math.max(...alike.map(pick), 0) || 1;
  const slowest = most((row) => row.latency!.median!), worst = most(errorOf), largest = most((row) => row.disk_mb ?? 0);
  return alike.map((row) => {
    const latency = row.latency!.median!, error = errorOf(row), size = row.disk_mb ?? 0;
    return {
      name: row.variant ?? "",
      latency,
      error,
      size,
      x: frame.left + (frame.right - frame.left - LARGEST) * (latency / slowest),
      y: frame.bottom - (frame.bottom - frame.top - LARGEST) * (error / worst),
      radius: Math.max(LARGEST * Math.sqrt(size / largest), SMALLEST),
    };
  });
}

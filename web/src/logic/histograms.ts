// Histograms with different bins, resampled to one range.
import type { Histogram } from "../data/types.ts";

export interface Grid {
  rows: string[]; // the middle of each row's range, the highest value first
  values: (number | null)[][];
}

// The share of elements by value and step. A bin that lies over several rows is split by how much of it lies in each.
export function histogramGrid(found: Histogram[], bins: number): Grid {
  const low = Math.min(...found.map((item) => item.low));
  const high = Math.max(...found.map((item) => item.high));
  const width = (high - low) / bins || 1;
  const values: (number | null)[][] = Array.from({ length: bins }, () => new Array<number | null>(found.length).fill(null));
  found.forEach((item, column) => {
    const total = item.counts.reduce((sum, count) => sum + count, 0) || 1;
    const own = (item.high - item.low) / item.counts.length;
    item.counts.forEach((count, at) => {
      if (!count) return;
      const start = (item.low + at * own - low) / width;
      const end = start + own / width;
      const last = Math.min(Math.max(Math.ceil(end) - 1, Math.floor(start)), bins - 1);
      for (let place = Math.min(Math.floor(start), bins - 1); place <= last; place++) {
        const part = own > 0 ? (Math.min(end, place + 1) - Math.max(start, place)) / (end - start) : 1;
        if (part <= 1e-9) continue;
        const row = bins - 1 - place;
        values[row][column] = (values[row][column] ?? 0) + (count / total) * part;
      }
    });
  });
  const rows = values.map((_, row) => (low + (bins - row - 0.5) * width).toPrecision(3));
  return { rows, values };
}

// The histograms of one name over the steps, as a grid of colours.
import { useEffect, useState } from "preact/hooks";
import { source } from "../data/page.ts";
import type { Histogram } from "../data/types.ts";
import { histogramGrid } from "../logic/histograms.ts";
import { Heatmap } from "./heatmap.tsx";

const ROWS = 48;

// `state` changes when there may be more of them.
export function HistogramChart({ runKey, name, title, state }: { runKey: string; name: string; title: string; state?: unknown }) {
  const [found, setFound] = useState<Histogram[]>([]);
  useEffect(() => {
    let current = true;
    source.value!.histograms(runKey, name).then((answer) => current && setFound(answer), () => {});
    return () => {
      current = false;
    };
  }, [runKey, name, state]);
  if (!found.length) return null;
  const grid = histogramGrid(found, ROWS);
  return <Heatmap title={title} rows={grid.rows} x={found.map((item) => item.step)} values={grid.values} scale />;
}

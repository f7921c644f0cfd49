// A grid of colours: rows over x, dark is low and bright is high; what was not measured stays empty.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { dark } from "../data/store.ts";
import { heat } from "../logic/colors.ts";
import { formatNumber, formatShort } from "../logic/format.ts";

export interface HeatmapProps {
  title: string;
  rows: string[];
  x: number[];
  values: (number | null)[][];
  log?: boolean;
  xTitle?: string;
  rowTitle?: (row: number) => string;
}

export function Heatmap(props: HeatmapProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const tip = useSignal("");
  const flat = props.values.flat().filter((value): value is number => value !== null && (!props.log || value > 0));
  const low = flat.reduce((a, b) => Math.min(a, b), Infinity);
  const high = flat.reduce((a, b) => Math.max(a, b), -Infinity);
  const scale = (value: number) => {
    if (props.log) {
      if (value <= 0) return 0;
      return high > low ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low)) : 0.5;
    }
    return high > low ? (value - low) / (high - low) : 0.5;
  };
  useEffect(() => {
    const target = canvas.current;
    if (!target || !props.rows.length) return;
    const columns = props.x.length;
    target.width = columns;
    target.height = props.rows.length;
    const context = target.getContext("2d")!;
    const image = context.createImageData(columns, props.rows.length);
    props.values.forEach((row, y) =>
      row.forEach((value, x) => {
        if (value === null) return;
        const [r, g, b] = heat(scale(value));
        image.data.set([r, g, b, 255], (y * columns + x) * 4);
      }),
    );
    context.putImageData(image, 0, 0);
  }, [props.values, props.log, dark.value]);
  const onMove = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const x = Math.min(Math.floor(((event.clientX - box.left) / box.width) * props.x.length), props.x.length - 1);
    const y = Math.min(Math.floor(((event.clientY - box.top) / box.height) * props.rows.length), props.rows.length - 1);
    const value = props.values[y]?.[x];
    tip.value = `${props.rows[y]}, ${props.xTitle ?? "step"} ${formatShort(props.x[x])}: ${value === null || value === undefined ? "not measured" : formatNumber(value)}`;
  };
  const height = Math.min(Math.max(props.rows.length * 14, 120), 640);
  return (
    <figure class="chart heatmap" data-chart={props.title}>
      <figcaption><h3>{props.title}</h3><span class="note">{tip.value || `${formatShort(low)} (dark) to ${formatShort(high)} (bright)${props.log ? ", logarithmic" : ""}`}</span></figcaption>
      <div class="heat-body" style={{ height: `${height}px` }}>
        <ol class="heat-rows" aria-hidden="true">
          {props.rows.length <= 60 && props.rows.map((row) => <li key={row} title={row}>{row}</li>)}
        </ol>
        <canvas ref={canvas} role="img" aria-label={`${props.title}: ${props.rows.length} rows, ${props.x.length} columns`} onMouseMove={onMove} onMouseLeave={() => (tip.value = "")} />
      </div>
      <div class="heat-x"><span>{formatShort(props.x[0] ?? 0)}</span><span>{props.xTitle ?? "step"}</span><span>{formatShort(props.x[props.x.length - 1] ?? 0)}</span></div>
    </figure>
  );
}

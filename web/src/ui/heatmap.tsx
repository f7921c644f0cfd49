// A grid of colours: rows over x, dark is low and bright is high; what was not measured stays empty.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { heat } from "../logic/colors.ts";
import { cell, fileName } from "../logic/csv.ts";
import { formatNumber, formatShort } from "../logic/format.ts";
import { download } from "./download.ts";
import { savePicture } from "./picture.ts";
import { Tools, useFullScreen } from "./tools.tsx";

export interface HeatmapProps {
  title: string;
  rows: string[];
  x: number[];
  values: (number | null)[][];
  log?: boolean;
  // Rows are positions on a scale, of which a few are labelled, not items that each have a name.
  scale?: boolean;
}

const MOST_NAMES = 60;
const SCALE_NAMES = 9;

export function Heatmap(props: HeatmapProps) {
  const box = useRef<HTMLElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const tip = useSignal("");
  const [full, toggleFull] = useFullScreen(box);
  const flat = props.values.flat().filter((value): value is number => value !== null && (!props.log || value > 0));
  const low = flat.reduce((a, b) => Math.min(a, b), Infinity);
  const high = flat.reduce((a, b) => Math.max(a, b), -Infinity);
  const share = (value: number) => {
    if (!(high > low)) return 0.5;
    if (!props.log) return (value - low) / (high - low);
    return value <= 0 ? 0 : (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low));
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
        image.data.set([...heat(share(value)), 255], (y * columns + x) * 4);
      }),
    );
    context.putImageData(image, 0, 0);
  }, [props.values, props.log]);
  const onMove = (event: MouseEvent) => {
    const place = canvas.current!.getBoundingClientRect();
    const x = Math.min(Math.floor(((event.clientX - place.left) / place.width) * props.x.length), props.x.length - 1);
    const y = Math.min(Math.floor(((event.clientY - place.top) / place.height) * props.rows.length), props.rows.length - 1);
    const value = props.values[y]?.[x];
    tip.value = `${props.rows[y]}, step ${props.x[x].toLocaleString("en-US")}: ${value === null || value === undefined ? "not measured" : formatNumber(value)}`;
  };
  const height = props.scale ? 220 : Math.min(Math.max(props.rows.length * 14, 120), 640);
  const names = rowNames(props);
  return (
    <figure class={`chart heatmap ${full.value ? "full" : ""}`} ref={box} data-chart={props.title}>
      <figcaption>
        <h3 title={props.title}>{props.title}</h3>
        <span class="heat-tip" role="status">{tip.value}</span>
        <Tools
          title={props.title}
          onFull={toggleFull}
          onPng={() => canvas.current && savePng(canvas.current, props, height, [low, high])}
          onCsv={() => download(fileName(props.title, "csv"), "text/csv", toCsv(props))}
        />
      </figcaption>
      <div class="heat-body" style={{ height: full.value ? undefined : `${height}px` }}>
        {names.length > 0 && <ol class="heat-rows" aria-hidden="true">{names.map((row) => <li key={row} title={row}>{row}</li>)}</ol>}
        <div class="heat-plot">
          <canvas ref={canvas} role="img" aria-label={`${props.title}: ${props.rows.length} rows, ${props.x.length} columns`} onMouseMove={onMove} onMouseLeave={() => (tip.value = "")} />
          <div class="heat-x"><span>{formatShort(props.x[0] ?? 0)}</span><span>step</span><span>{formatShort(props.x[props.x.length - 1] ?? 0)}</span></div>
        </div>
      </div>
      {flat.length > 0 && (
        <div class="heat-scale"><span>{formatShort(low)}</span><i aria-hidden="true" /><span>{formatShort(high)}{props.log && " (logarithmic)"}</span></div>
      )}
    </figure>
  );
}

function rowNames(props: HeatmapProps): string[] {
  if (!props.scale) return props.rows.length <= MOST_NAMES ? props.rows : [];
  const step = (props.rows.length - 1) / (SCALE_NAMES - 1);
  return Array.from({ length: SCALE_NAMES }, (_, at) => props.rows[Math.round(at * step)]);
}

function toCsv(props: HeatmapProps): string {
  const head = ["row", ...props.x].map(cell).join(",");
  return [head, ...props.values.map((row, at) => [props.rows[at], ...row.map((value) => value ?? "")].map(cell).join(","))].join("\n") + "\n";
}

function savePng(source: HTMLCanvasElement, props: HeatmapProps, height: number, ends: [number, number]): void {
  const [width, foot] = [900, 24];
  const names = rowNames(props);
  const draw = (context: CanvasRenderingContext2D) => {
    context.font = `10px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--text-dim");
    const left = names.length ? Math.min(Math.max(...names.map((name) => context.measureText(name).width)) + 20, 260) : 12;
    context.textAlign = "right";
    names.forEach((name, at) => context.fillText(name, left - 6, ((at + 0.5) * height) / names.length + 3, left - 12));
    context.imageSmoothingEnabled = false;
    context.drawImage(source, left, 0, width - left - 12, height);
    context.textAlign = "left";
    context.fillText(`step ${formatShort(props.x[0] ?? 0)}`, left, height + 16);
    context.textAlign = "right";
    context.fillText(formatShort(props.x[props.x.length - 1] ?? 0), width - 12, height + 16);
  };
  const title = `${props.title}: ${formatShort(ends[0])} (dark) to ${formatShort(ends[1])} (bright)`;
  savePicture({ name: props.title, title, width, height, foot, draw });
}

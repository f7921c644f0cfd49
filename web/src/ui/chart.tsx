// A chart: lines, bands or a stack, with zoom, cross-hair, marks, full screen, PNG and CSV.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { dark, go, route, run, setZoom, zoomOn } from "../data/store.ts";
import type { Series } from "../data/types.ts";
import { changeView, keptView } from "../data/view.ts";
import { describeBroken } from "../logic/broken.ts";
import { alone, breakGaps, join, meanOfNeighbours, positive, stack, type Column } from "../logic/align.ts";
import { lineStyle, swatch, type LineStyle } from "../logic/colors.ts";
import { fileName, toCsv } from "../logic/csv.ts";
import { formatShort, formatSpan, formatTimes, formatValue, formatX, labelTicks, splitEvenly, splitLog } from "../logic/format.ts";
import type { Mark } from "../logic/marks.ts";
import { keepHidden, keepScale } from "../logic/own_panels.ts";
import { hiddenLines, hideLines, isLog as isLogIn, setLog } from "../logic/route.ts";
import { smooth } from "../logic/smooth.ts";
import { download } from "./download.ts";
import { Icon } from "./icons.tsx";
import { savePicture } from "./picture.ts";
import { Tools, useFullScreen } from "./tools.tsx";

export interface ChartProps {
  title: string;
  series: Series[];
  titles: string[];
  axis: string;
  unit?: string;
  height?: number;
  kind?: "line" | "stacked";
  low?: number | null;
  high?: number | null;
  log?: boolean;
  canLog?: boolean;
  smoothing?: number;
  limit?: number | null;
  marks?: Mark[];
  help?: string;
  colors?: number[];
  stale?: boolean;
  actions?: preact.ComponentChildren;
}

interface Drawn {
  data: uPlot.AlignedData;
  // Faint lines have no title. A smoothed line follows the logged one it was made from.
  lines: { title: string; stroke: string; dash: number[]; series: Series; width: number; faint: boolean; smoothed?: boolean }[];
  bands: uPlot.Band[];
}

// A video wall is viewed from further away.
export function isHuge(): boolean {
  return innerWidth >= 2400;
}

export function heightOf({ height = 200 }: { height?: number }): number {
  return isHuge() ? Math.round(height * 1.4) : height;
}

// A range that was drawn with the mouse is the new zoom.
export function zoomBySelection(axis: string): (u: uPlot) => void {
  return (u) => {
    if (u.select.width < 4) return;
    const [start, end] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    setZoom({ axis, start, end });
  };
}

// Keeps the plot as wide as its place, and as high as wanted; null is as high as the place.
export function followSize(plot: uPlot, place: HTMLElement, wanted: () => number | null): () => void {
  const watcher = new ResizeObserver(() => {
    const width = place.clientWidth;
    const height = wanted() ?? Math.max(place.clientHeight, 200);
    if (width && (Math.abs(width - plot.width) > 1 || Math.abs(height - plot.height) > 1)) plot.setSize({ width, height });
  });
  watcher.observe(place);
  return () => watcher.disconnect();
}

export function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Columns and how each is drawn.
function arrange(props: ChartProps, log: boolean): Drawn {
  const isDark = dark.value;
  const lines: Drawn["lines"] = [];
  const bands: uPlot.Band[] = [];
  if (props.kind === "stacked") {
    // Extremes of each part would add up to a step that never was.
    const table = stack(props.series.map(meanOfNeighbours));
    // The top of the stack first, so that each band is painted below the one above it.
    props.series.forEach((series, at) => {
      const style = lineStyle(props.colors?.[at] ?? at, isDark);
      lines.push({ title: props.titles[at], ...style, dash: [], series, width: 1, faint: false });
      if (at) bands.push({ series: [at + 1, at], fill: style.stroke + "66" });
    });
    return { data: [table.x, ...table.columns] as uPlot.AlignedData, lines, bands };
  }
  const sources: { x: number[]; y: (number | null)[] }[] = [];
  props.series.forEach((series, at) => {
    const style = lineStyle(props.colors?.[at] ?? at, isDark);
    // The mean of a band lies within it, and a mean of many is smooth by itself.
    const smoothing = series.low ? 0 : (props.smoothing ?? 0);
    if (series.low && series.high) {
      sources.push({ x: series.x, y: series.high }, { x: series.x, y: series.low });
      lines.push({ title: "", ...style, series, width: 0, faint: true }, { title: "", ...style, series, width: 0, faint: true });
      bands.push({ series: [lines.length - 1, lines.length], fill: style.stroke + "33" });
    }
    if (smoothing > 0) {
      sources.push({ x: series.x, y: series.y });
      lines.push({ title: "", ...style, series, width: 1, faint: true });
    }
    sources.push({ x: series.x, y: smoothing > 0 ? smooth(series.x, series.y, smoothing) : series.y });
    lines.push({ title: props.titles[at], ...style, series, width: 1.5, faint: false, smoothed: smoothing > 0 });
  });
  const table = join(props.axis === "time" || props.axis === "relative" ? sources.map(breakGaps) : sources);
  const columns: Column[] = log ? table.columns.map(positive) : table.columns;
  return { data: [table.x, ...columns] as uPlot.AlignedData, lines, bands };
}

export function xValues(axis: string): uPlot.Axis.Values {
  if (axis === "time") return (_, ticks) => formatTimes(ticks);
  if (axis === "relative") return (_, ticks) => ticks.map((tick) => formatSpan(tick).replace(".0 s", " s"));
  return (_, ticks) => ticks.map(formatShort);
}

// Pixels from one label to the next: parts of a second need more.
export function xSpace(axis: string): (u: uPlot, at: number, low: number, high: number, pixels: number) => number {
  return (_, __, low, high, pixels) => (axis === "time" && high - low < pixels / X_SPACE ? 100 : X_SPACE);
}

const X_SPACE = 70;

// There is nothing between two steps.
export const WHOLE_STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

export function aroundOne(x: number, axis: string): [number, number] {
  const room = axis === "time" ? 5 : 1;
  return [x - room, x + room];
}

// Units short enough for every tick label; the others are shown beside the title.
const SHORT_UNITS = new Set(["MB", "GB", "MB/s", "s", "J", "%", "°C", "W", "MHz", "s/s", "J/s"]);

export function yTicks(unit: string): uPlot.Axis.Values {
  return (_, ticks) => labelTicks(ticks, unit, SHORT_UNITS.has(unit));
}

const AXIS_WIDTH = 62;
const DIGIT_WIDTH = 6.5;

// As wide as in every other chart, unless a label needs more.
export function yWidth(_: uPlot, labels: string[] | null): number {
  return Math.max(AXIS_WIDTH, ...(labels ?? []).map((label) => label.length * DIGIT_WIDTH + 8));
}

export function captionOf(axis: string, unit: string): string {
  const over = axis === "relative" ? "over time since start" : axis === "time" ? "over time" : `by ${axis}`;
  return unit && !SHORT_UNITS.has(unit) ? `${unit} ${over}` : over;
}

// Round numbers of bytes are powers of two, from one byte on.
function tickSteps(unit: string): number[] | null {
  if (unit !== "MB" && unit !== "MB/s") return null;
  return Array.from({ length: 50 }, (_, power) => 2 ** (power - 20));
}

// uPlot itself rounds steps that it does not know to whole numbers, and begins a logarithmic axis with the lowest value.
export function ySplits(log: boolean, unit: string): Partial<uPlot.Axis> {
  if (log) return { splits: (_, __, low, high) => splitLog(low, high) };
  const steps = tickSteps(unit);
  return steps ? { incrs: steps, splits: (_, __, low, high, step) => splitEvenly(low, high, step) } : {};
}

export function Chart(props: ChartProps) {
  const box = useRef<HTMLElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const tip = useSignal<Tip | null>(null);
  const [full, toggleFull] = useFullScreen(box);
  // Charts of several runs are of no one project.
  const project = route.value.run !== null ? (run.value?.project ?? null) : null;
  const kept = project !== null ? keptView(project)?.view : undefined;
  const isLog = isLogIn(route.value, props.title, props.log ?? false, kept);
  const hidden = hiddenLines(route.value, props.title, props.titles, kept?.hide);
  const latest = useRef(props);
  latest.current = props;

  const shownAt = props.series.map((_, at) => at).filter((at) => !hidden.has(props.titles[at]));
  const shown: ChartProps = {
    ...props,
    series: shownAt.map((at) => props.series[at]),
    titles: shownAt.map((at) => props.titles[at]),
    colors: shownAt.map((at) => props.colors?.[at] ?? at),
  };
  const drawn = useMemo(
    () => arrange(shown, isLog),
    [props.series, props.titles.join("\n"), props.smoothing, isLog, dark.value, [...hidden].join("\n"), props.kind],
  );
  const drawnRef = useRef(drawn);
  drawnRef.current = drawn;
  const zoomed = zoomOn(props.axis) ?? null;
  const zoomRef = useRef(zoomed);
  zoomRef.current = zoomed;
  // The plot is rebuilt when its shape changes; new numbers only update it.
  const shape = JSON.stringify([
    drawn.lines.map((line) => [line.title, line.stroke, line.dash, line.width, line.faint]),
    drawn.bands.length, props.axis, isLog, dark.value, props.unit, props.low, props.high, props.kind,
  ]);

  useEffect(() => {
    if (!place.current) return;
    const text = css("--text-dim");
    const grid = { stroke: css("--grid"), width: 1 };
    const font = `${isHuge() ? 13 : 11}px ${getComputedStyle(document.body).fontFamily}`;
    const options: uPlot.Options = {
      width: Math.max(place.current.clientWidth, 120),
      height: heightOf(props),
      padding: [8, props.axis === "time" ? 34 : 18, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: `axis-${props.axis}`, setSeries: false },
        drag: { x: true, y: false, setScale: false },
        points: { size: 6 },
        // The logged line under a smoothed one would dim it.
        focus: { prox: 24, dist: (_, at, __, value, cursor) => (drawnRef.current.lines[at - 1]?.faint ? Infinity : value - cursor) },
      },
      focus: { alpha: 0.35 },
      scales: {
        x: {
          time: props.axis === "time",
          range: (u, low, high) => {
            const to = zoomRef.current;
            if (to) return [to.start, to.end];
            // A single value would get a range of years from uPlot.
            const [only, ...others] = u.data[0];
            if (only !== undefined && !others.length) return aroundOne(only, props.axis);
            return low === high ? aroundOne(low, props.axis) : [low, high];
          },
        },
        y: {
          distr: isLog ? 3 : 1,
          range: (_, low, high) => yRange(low, high, isLog, props.low ?? null, props.high ?? null, latest.current.limit ?? null),
        },
      },
      axes: [
        { stroke: text, grid, ticks: grid, font, size: 28, space: xSpace(props.axis), values: xValues(props.axis), ...(props.axis === "step" && { incrs: WHOLE_STEPS }) },
        { stroke: text, grid, ticks: { show: false }, font, size: yWidth, space: 26, gap: 4, values: yTicks(props.unit ?? ""), ...ySplits(isLog, props.unit ?? "") },
      ],
      series: [
        {},
        ...drawn.lines.map((line): uPlot.Series => ({
          label: line.title,
          stroke: line.faint ? line.stroke + "55" : line.stroke,
          width: line.width,
          dash: line.dash,
          fill: props.kind === "stacked" && line === drawn.lines[0] ? line.stroke + "66" : undefined,
          spanGaps: false,
          pxAlign: 0, // whole pixels would put steps into a smooth curve
          points: { show: (u, at) => isSparse(u, at), filter: (u, at, show) => (show || !line.width ? null : findAlone(u.data[at] as Column)), size: 4, fill: line.stroke },
        })),
      ],
      bands: drawn.bands,
      hooks: {
        setSelect: [zoomBySelection(props.axis)],
        setCursor: [(u) => (tip.value = readTip(u, drawnRef.current, latest.current))],
        draw: [(u) => drawMarks(u, latest.current, drawnRef.current)],
      },
    };
    const made = new uPlot(options, drawnRef.current.data, place.current);
    plot.current = made;
    const unfollow = followSize(made, place.current, () => (full.value ? null : heightOf(latest.current)));
    return () => {
      unfollow();
      made.destroy();
      plot.current = null;
      tip.value = null;
    };
  }, [shape, full.value]);

  useEffect(() => {
    plot.current?.setData(drawn.data);
  }, [drawn, zoomed?.start, zoomed?.end, props.limit]);
  useEffect(() => {
    plot.current?.redraw(false);
  }, [props.marks]);

  const hide = (lines: ReadonlySet<string>) => {
    go(hideLines(route.value, props.title, props.titles, lines), true);
    if (project !== null) changeView(project, (view) => keepHidden(view, props.title, props.titles, lines));
  };
  const toggleLog = () => {
    const declared = props.log ?? false;
    go(setLog(route.value, props.title, declared, !isLog), true);
    if (project !== null) changeView(project, (view) => keepScale(view, props.title, declared, !isLog));
  };
  const toggle = (title: string, only: boolean) => {
    const all = new Set(props.titles);
    if (only) {
      const others = new Set([...all].filter((item) => item !== title));
      hide(others.size === hidden.size && !hidden.has(title) ? new Set() : others);
      return;
    }
    const next = new Set(hidden);
    if (!next.delete(title)) next.add(title);
    hide(next.size >= all.size ? new Set() : next);
  };
  const onKey = (event: KeyboardEvent) => keyboard(event, plot.current, props.axis, toggleFull);
  const broken = describeBroken(props.series);
  const empty = props.series.every((series) => series.x.length === 0);

  return (
    <figure class={`chart ${full.value ? "full" : ""} ${props.stale ? "stale" : ""}`} ref={box} data-chart={props.title}>
      <figcaption>
        <h3 title={props.help || props.title}>{props.title}</h3>
        <span class="axis">{captionOf(props.axis, props.unit ?? "")}</span>
        {broken && <span class="badge critical" title="NaN or infinite values, marked at the bottom">{broken}</span>}
        <Tools
          title={props.title}
          onFull={toggleFull}
          onPng={() => savePng(plot.current, props)}
          onCsv={() => download(fileName(props.title, "csv"), "text/csv", toCsv(props.axis, shown.series, shown.titles))}
        >
          {props.actions}
          {props.canLog && (
            <button type="button" class={isLog ? "on" : ""} aria-pressed={isLog} title="logarithmic axis" onClick={toggleLog}>log</button>
          )}
          {zoomed && <button type="button" title="reset zoom" aria-label="reset zoom" onClick={() => setZoom(null)}><Icon name="reset" /></button>}
        </Tools>
      </figcaption>
      <div
        class="plot"
        ref={place}
        tabIndex={0}
        role="img"
        aria-label={describe(props)}
        onKeyDown={onKey}
        onDblClick={() => setZoom(null)}
        style={{ minHeight: `${heightOf(props)}px` }}
      >
        {empty && <div class="nothing">no data in this range</div>}
        {!empty && broken && props.series.every((series) => series.y.every((value) => value === null)) && <div class="nothing">no finite values: {broken}</div>}
        {tip.value && (
          <div class={`tip ${tip.value.flip ? "flip" : ""}`} style={{ left: `${tip.value.left}px`, top: `${tip.value.top}px` }}>
            <div class="tip-x">{formatX(props.axis, tip.value.x)}</div>
            {tip.value.rows.map((row) => (
              <div class="tip-row" key={row.title}><i style={{ background: swatch(row.style) }} /><span>{row.title}</span><b>{row.text}</b>{row.smoothed && <small>{row.smoothed}</small>}</div>
            ))}
            {tip.value.more > 0 && <div class="tip-row"><i /><span>and {tip.value.more} more</span></div>}
            {tip.value.marks.map((mark, at) => <div class={`tip-mark ${mark.severity}`} key={at}>{mark.text}</div>)}
          </div>
        )}
      </div>
      {(props.titles.length > 1 || props.kind === "stacked" || props.series.some((series) => series.low)) && (
        <div class="legend">
          {props.titles.map((title, at) => {
            const style = lineStyle(props.colors?.[at] ?? at, dark.value);
            return (
              <button
                type="button"
                key={title}
                class={hidden.has(title) ? "off" : ""}
                aria-pressed={!hidden.has(title)}
                title={`${title}: click to hide or show, Shift-click to show only this`}
                onClick={(event) => toggle(title, event.shiftKey)}
              >
                <i class={style.dash.length ? "dashed" : ""} style={{ color: style.stroke }} />
                <span>{title}{props.series[at].low && " (min, mean, max)"}</span>
              </button>
            );
          })}
        </div>
      )}
    </figure>
  );
}

// Single points and short series are drawn as dots, or they would be invisible.
function isSparse(u: uPlot, at: number): boolean {
  let count = 0;
  const column = u.data[at];
  for (let k = 0; k < column.length && count < 3; k++) if (column[k] !== null && column[k] !== undefined) count++;
  return count < 3;
}

function findAlone(column: Column): number[] | null {
  const found = alone(column);
  return found.length ? found : null;
}

export function yRange(low: number | null, high: number | null, log: boolean, floor: number | null, ceiling: number | null, limit: number | null): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) {
    return log ? [0.1, 1] : [floor ?? 0, ceiling ?? 1];
  }
  if (log) return low === high ? [low / 2, high * 2] : [low * 0.9, high * 1.1];
  let from = floor !== null ? Math.min(floor, low) : low;
  let to = ceiling !== null ? Math.max(ceiling, high) : high;
  if (limit !== null && limit < high * 3) to = Math.max(to, limit);
  // Rounding noise of a constant is not worth showing.
  if (to - from <= Math.max(Math.abs(from), Math.abs(to)) * 1e-9) {
    const room = Math.abs(from) * 0.1 || 1;
    return floor === from ? [from, to + room] : [from - room, to + room];
  }
  const room = (to - from) * 0.06;
  if (floor === null || low < floor) from -= room;
  if (ceiling === null || high > ceiling) to += room;
  return [from, to];
}

interface Tip {
  left: number;
  top: number;
  flip: boolean;
  x: number;
  rows: TipRow[];
  more: number;
  marks: Mark[];
}

interface TipRow {
  title: string;
  value: number;
  text: string;
  smoothed: string;
  style: LineStyle;
}

const TIP_ROWS = 14;
const TIP_MARKS = 3;
const NEAR_PIXELS = 5;
const MANY_MARKS = 16;

function readTip(u: uPlot, drawn: Drawn, props: ChartProps): Tip | null {
  const at = u.cursor.idx;
  const { left, top } = u.cursor;
  if (at === null || at === undefined || left === undefined || left < 0 || top === undefined) return null;
  const x = u.data[0][at];
  const rows: TipRow[] = [];
  drawn.lines.forEach((line, place) => {
    if (!line.title) return;
    const value = nearest(u.data[place + 1] as Column, at);
    if (value === null) return;
    const below = place ? nearest(u.data[place] as Column, at) : null;
    const own = props.kind === "stacked" ? value - (below ?? 0) : line.smoothed ? (below ?? value) : value;
    const [text, shown] = [formatValue(own, props.unit), formatValue(value, props.unit)];
    rows.push({ title: line.title, value: own, text, smoothed: line.smoothed && shown !== text ? `smoothed ${shown}` : "", style: line });
  });
  if (rows.length > 4) rows.sort((a, b) => b.value - a.value);
  const more = rows.splice(TIP_ROWS).length;
  const offset = u.over.offsetLeft;
  const marks = (props.marks ?? []).filter((mark) => Math.abs(u.valToPos(mark.x, "x") - left) <= NEAR_PIXELS).slice(0, TIP_MARKS);
  return { left: left + offset, top: Math.max(top - 10, 0), flip: left > u.over.clientWidth / 2, x, rows, more, marks };
}

// Series that were joined have no value at most places: the one before is what the line shows.
function nearest(column: Column, at: number): number | null {
  for (let k = at; k >= 0 && at - k < 400; k--) {
    const value = column[k];
    if (value === null) return null;
    if (value !== undefined) return value;
  }
  return null;
}

function drawMarks(u: uPlot, props: ChartProps, drawn: Drawn): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + 10 * ratio);
  ctx.clip();
  const inside = (x: number) => x >= (u.scales.x.min ?? -Infinity) && x <= (u.scales.x.max ?? Infinity);
  if (props.limit !== null && props.limit !== undefined && props.limit <= (u.scales.y.max ?? -Infinity)) {
    const y = Math.round(u.valToPos(props.limit, "y", true));
    ctx.strokeStyle = css("--warning");
    ctx.lineWidth = ratio;
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  const marks = (props.marks ?? []).filter((mark) => inside(mark.x)).slice(0, 500);
  const isBad = (mark: Mark) => mark.severity === "critical" || mark.severity === "warning";
  // A few warnings are vertical lines; many would hide the curve and are ticks at the top, as is everything harmless.
  const many = marks.filter(isBad).length > MANY_MARKS;
  for (const mark of marks) {
    const x = Math.round(u.valToPos(mark.x, "x", true));
    const isTick = !mark.divides && (many || !isBad(mark));
    ctx.strokeStyle = css(mark.severity === "critical" ? "--critical" : mark.severity === "warning" ? "--warning" : "--text-dim");
    ctx.lineWidth = ratio;
    ctx.setLineDash(isTick ? [] : [2 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + (isTick ? 7 * ratio : bbox.height));
    ctx.stroke();
  }
  ctx.setLineDash([]);
  drawBroken(u, new Set(drawn.lines.map((line) => line.series)));
  ctx.restore();
}

// A triangle at the bottom wherever a value is NaN or infinite.
export function drawBroken(u: uPlot, several: Iterable<Series>): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  const [start, end] = [u.scales.x.min ?? -Infinity, u.scales.x.max ?? Infinity];
  const bottom = bbox.top + bbox.height;
  ctx.fillStyle = css("--critical");
  for (const series of several) {
    for (const [at] of (series.nonfinite ?? []).slice(0, 2000)) {
      const value = series.x[at];
      if (value < start || value > end) continue;
      const x = u.valToPos(value, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bottom - 7 * ratio);
      ctx.lineTo(x - 4 * ratio, bottom);
      ctx.lineTo(x + 4 * ratio, bottom);
      ctx.fill();
    }
  }
}

function keyboard(event: KeyboardEvent, u: uPlot | null, axis: string, full: () => void): void {
  if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
  const min = u.scales.x.min ?? 0;
  const max = u.scales.x.max ?? 1;
  const span = max - min;
  const at = u.cursor.idx ?? Math.floor(u.data[0].length / 2);
  const moves: Record<string, () => void> = {
    ArrowLeft: () => (event.shiftKey ? setZoom({ axis, start: min - span / 4, end: max - span / 4 }) : point(u, at - 1)),
    ArrowRight: () => (event.shiftKey ? setZoom({ axis, start: min + span / 4, end: max + span / 4 }) : point(u, at + 1)),
    "+": () => setZoom({ axis, start: min + span / 4, end: max - span / 4 }),
    "=": () => setZoom({ axis, start: min + span / 4, end: max - span / 4 }),
    "-": () => setZoom({ axis, start: min - span / 2, end: max + span / 2 }),
    "0": () => setZoom(null),
    f: full,
  };
  const move = moves[event.key];
  if (move) {
    event.preventDefault();
    move();
  }
}

function point(u: uPlot, at: number): void {
  const place = Math.min(Math.max(at, 0), u.data[0].length - 1);
  const left = u.valToPos(u.data[0][place], "x");
  u.setCursor({ left, top: u.over.clientHeight / 2 });
}

function describe(props: ChartProps): string {
  const parts = props.series.slice(0, 8).map((series, at) => {
    const last = series.y.length ? series.y[series.y.length - 1] : null;
    return `${props.titles[at]} ${formatValue(last, props.unit)}`;
  });
  return `${props.title}: ${parts.join(", ") || "no values"}. Arrow keys step through values, plus and minus zoom, 0 resets the zoom.`;
}

function savePng(u: uPlot | null, props: ChartProps): void {
  if (!u) return;
  const ratio = devicePixelRatio || 1;
  const source = u.ctx.canvas;
  const [width, height] = [source.width / ratio, source.height / ratio];
  const many = props.titles.length > 1;
  savePicture({
    name: props.title,
    title: props.title + (props.unit ? ` (${props.unit})` : ""),
    width,
    height,
    foot: many ? 26 : 6,
    ratio,
    legend: many ? props.titles.map((text, at) => ({ text, ...lineStyle(props.colors?.[at] ?? at, dark.value) })) : [],
    draw: (context) => context.drawImage(source, 0, 0, width, height),
  });
}

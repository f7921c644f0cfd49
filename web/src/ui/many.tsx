// A chart of hundreds of lines, each with its own x. uPlot draws axes and cursor; the lines are drawn here, because it
// would want all of them over one x: 200 runs of 2,000 points have 400,000 different ones.
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { dark, go, route, setZoom, zoom } from "../data/store.ts";
import type { Curve } from "../data/types.ts";
import { describeBroken } from "../logic/broken.ts";
import { fileName, toCsv } from "../logic/csv.ts";
import { swatch, type LineStyle } from "../logic/colors.ts";
import { formatValue, formatX } from "../logic/format.ts";
import { lineAt, nearestPlace, rangeOfY, valueAt, type Drawable } from "../logic/lines.ts";
import { isLog as isLogIn, setLog } from "../logic/route.ts";
import { aroundOne, captionOf, css, drawBroken, followSize, heightOf, isHuge, WHOLE_STEPS, xSpace, xValues, yRange, ySplits, yTicks, yWidth, zoomBySelection } from "./chart.tsx";
import { download } from "./download.ts";
import { Icon } from "./icons.tsx";
import { savePicture } from "./picture.ts";
import { Tools, useFullScreen } from "./tools.tsx";

export interface ManyLine {
  id: string;
  title: string;
  style: LineStyle;
  pinned: boolean;
  // Of how many runs it is.
  runs: number;
  series: Curve;
  // What is drawn: smoothed, or the series itself.
  drawn: Drawable;
}

export interface ManyProps {
  title: string;
  help: string;
  lines: ManyLine[];
  axis: string;
  unit: string;
  log: boolean;
  canLog: boolean;
  // Why there is no line, if there is none.
  nothing: string;
  // The line that is pointed at, in all charts and in the legend.
  pointed: Signal<string | null>;
}

const HEIGHT = 300;
const REACH = 40; // pixels from the pointer to a line
const MANY = 24; // lines, from which on each is a little transparent
const FAINT = 12; // lines, up to which what was logged is drawn behind what is smoothed
const TIP_LINES = 5;

interface Tip {
  left: number;
  top: number;
  flip: boolean;
  x: number;
  rows: { id: string; title: string; style: LineStyle; text: string; note: string }[];
}

export function ManyLines(props: ManyProps) {
  const box = useRef<HTMLElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const overlay = useRef<HTMLCanvasElement | null>(null);
  const tip = useSignal<Tip | null>(null);
  const [full, toggleFull] = useFullScreen(box);
  const isLog = isLogIn(route.value, props.title, props.log);
  const zoomed = zoom.value?.axis === props.axis ? zoom.value : null;
  // Pinned ones are drawn last: on top.
  const lines = useMemo(() => [...props.lines].sort((a, b) => Number(a.pinned) - Number(b.pinned)), [props.lines]);
  const latest = useRef({ props, lines, zoomed, isLog });
  latest.current = { props, lines, zoomed, isLog };
  const ends = useMemo(() => endsOf(lines), [lines]);

  useEffect(() => {
    if (!place.current) return;
    const text = css("--text-dim");
    const grid = { stroke: css("--grid"), width: 1 };
    const font = `${isHuge() ? 13 : 11}px ${getComputedStyle(document.body).fontFamily}`;
    const made = new uPlot(
      {
        width: Math.max(place.current.clientWidth, 120),
        height: heightOf({ height: HEIGHT }),
        padding: [8, props.axis === "time" ? 34 : 18, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false } },
        scales: {
          x: { time: props.axis === "time", range: (_, low, high) => (latest.current.zoomed ? [latest.current.zoomed.start, latest.current.zoomed.end] : low === high ? aroundOne(low, props.axis) : [low, high]) },
          y: {
            distr: isLog ? 3 : 1,
            range: (u) => {
              const { lines: all, zoomed: seen } = latest.current;
              const found = rangeOfY(all.map((line) => (all.length <= FAINT ? line.series : line.drawn)), seen?.start ?? u.data[0][0], seen?.end ?? u.data[0][1], isLog);
              return yRange(found?.[0] ?? null, found?.[1] ?? null, isLog, null, null, null);
            },
          },
        },
        axes: [
          { stroke: text, grid, ticks: grid, font, size: 28, space: xSpace(props.axis), values: xValues(props.axis), ...(props.axis === "step" && { incrs: WHOLE_STEPS }) },
          { stroke: text, grid, ticks: { show: false }, font, size: yWidth, space: 26, gap: 4, values: yTicks(props.unit), ...ySplits(isLog, props.unit) },
        ],
        series: [{}, { show: true, width: 0, points: { show: false } }],
        hooks: {
          setSelect: [zoomBySelection(props.axis)],
          setCursor: [(u) => point(u)],
          draw: [(u) => (drawLines(u, latest.current.lines), drawBroken(u, latest.current.lines.map((line) => line.series)), drawPointed(u, overlay.current, latest.current.lines, props.pointed.peek()))],
        },
      },
      [[...ends], [0, 1]],
      place.current,
    );
    const canvas = document.createElement("canvas");
    canvas.className = "pointed";
    made.over.appendChild(canvas);
    overlay.current = canvas;
    plot.current = made;
    const unfollow = followSize(made, place.current, () => (full.value ? null : heightOf({ height: HEIGHT })));
    return () => {
      unfollow();
      made.destroy();
      plot.current = null;
      tip.value = null;
    };
  }, [props.axis, props.unit, isLog, dark.value, full.value]);

  useEffect(() => {
    plot.current?.setData([[...ends], [0, 1]]);
  }, [lines, zoomed?.start, zoomed?.end]);
  useEffect(() => props.pointed.subscribe((id) => plot.current && drawPointed(plot.current, overlay.current, latest.current.lines, id)), [props.pointed]);

  const point = (u: uPlot) => {
    const { left, top } = u.cursor;
    if (left === undefined || top === undefined || left < 0) {
      if (tip.peek()) props.pointed.value = null;
      tip.value = null;
      return;
    }
    const { lines: all, props: now } = latest.current;
    const x = u.posToVal(left, "x");
    const slack = Math.abs(u.posToVal(left + 8, "x") - x);
    const at = lineAt(all.map((line) => line.drawn), x, slack, (y) => u.valToPos(y, "y"), top, REACH);
    now.pointed.value = at < 0 ? null : all[at].id;
    tip.value = readTip(u, all, at, x, slack, now.unit, left, top);
  };

  const onKey = (event: KeyboardEvent) => {
    const u = plot.current;
    if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
    const [min, max] = [u.scales.x.min ?? 0, u.scales.x.max ?? 1];
    const span = max - min;
    const left = u.cursor.left !== undefined && u.cursor.left >= 0 ? u.cursor.left : u.over.clientWidth / 2;
    const top = u.cursor.top !== undefined && u.cursor.top >= 0 ? u.cursor.top : u.over.clientHeight / 2;
    const along = (by: number) => u.setCursor({ left: Math.min(Math.max(left + by, 0), u.over.clientWidth), top });
    // To the next line above or below the one that is pointed at.
    const across = (way: number) => {
      const x = u.posToVal(left, "x");
      const slack = Math.abs(u.posToVal(left + 8, "x") - x);
      const tops = latest.current.lines.flatMap((line) => {
        const y = valueAt(line.drawn, x, slack);
        return y === null ? [] : [u.valToPos(y, "y")];
      }).filter((item) => (way > 0 ? item > top + 0.5 : item < top - 0.5)).sort((a, b) => way * (a - b));
      if (tops.length) u.setCursor({ left, top: tops[0] });
    };
    const moves: Record<string, () => void> = {
      ArrowLeft: () => along(-10),
      ArrowRight: () => along(10),
      ArrowUp: () => across(-1),
      ArrowDown: () => across(1),
      "+": () => setZoom({ axis: props.axis, start: min + span / 4, end: max - span / 4 }),
      "=": () => setZoom({ axis: props.axis, start: min + span / 4, end: max - span / 4 }),
      "-": () => setZoom({ axis: props.axis, start: min - span / 2, end: max + span / 2 }),
      "0": () => setZoom(null),
      f: toggleFull,
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  };
  const grouped = lines.some((line) => line.series.members !== undefined);
  const broken = useMemo(() => describeBroken(lines.map((line) => line.series)), [lines]);

  return (
    <figure class={`chart many ${full.value ? "full" : ""}`} ref={box} data-chart={props.title}>
      <figcaption>
        <h3 title={props.help}>{props.title}</h3>
        <span class="axis">{captionOf(props.axis, props.unit)}</span>
        {broken && <span class="badge critical" title="NaN or infinite values, marked at the bottom">{broken}</span>}
        <Tools
          title={props.title}
          onFull={toggleFull}
          onPng={() => plot.current && savePng(plot.current, props)}
          onCsv={() => download(fileName(props.title, "csv"), "text/csv", toCsv(props.axis, lines.map((line) => line.series), lines.map((line) => line.title)))}
        >
          {props.canLog && <button type="button" class={isLog ? "on" : ""} aria-pressed={isLog} title="logarithmic axis" onClick={() => go(setLog(route.value, props.title, props.log, !isLog), true)}>log</button>}
          {zoomed && <button type="button" title="reset zoom" aria-label="reset zoom" onClick={() => setZoom(null)}><Icon name="reset" /></button>}
        </Tools>
      </figcaption>
      <div
        class="plot"
        ref={place}
        tabIndex={0}
        role="img"
        aria-label={`${props.title}: ${lines.length} ${grouped ? "groups" : "runs"}. Left and right move the cursor, up and down switch lines, plus and minus zoom, 0 resets the zoom.`}
        onKeyDown={onKey}
        onDblClick={() => setZoom(null)}
        style={{ minHeight: `${heightOf({ height: HEIGHT })}px` }}
      >
        {lines.length === 0 && <div class="nothing">{props.nothing}</div>}
        {tip.value && tip.value.rows.length > 0 && (
          <div class={`tip ${tip.value.flip ? "flip" : ""}`} style={{ left: `${tip.value.left}px`, top: `${tip.value.top}px` }}>
            <div class="tip-x">{formatX(props.axis, tip.value.x)}</div>
            {tip.value.rows.map((row, at) => <div class={`tip-row ${at ? "other" : ""}`} key={row.id}><i style={{ background: swatch(row.style) }} /><span>{row.title}</span><b>{row.text}</b>{row.note && <small>{row.note}</small>}</div>)}
          </div>
        )}
      </div>
    </figure>
  );
}

function endsOf(lines: ManyLine[]): [number, number] {
  let [start, end] = [Infinity, -Infinity];
  for (const { series } of lines) {
    if (!series.x.length) continue;
    start = Math.min(start, series.x[0]);
    end = Math.max(end, series.x[series.x.length - 1]);
  }
  return start <= end ? [start, end] : [0, 1];
}

// The logged value nearest to the pointer, of the line that is pointed at and of its neighbours.
function readTip(u: uPlot, lines: ManyLine[], at: number, x: number, slack: number, unit: string, left: number, top: number): Tip {
  const near = lines.flatMap((line, place) => {
    const y = valueAt(line.drawn, x, slack);
    return y === null ? [] : [{ line, off: place === at ? -1 : Math.abs(u.valToPos(y, "y") - top) }];
  }).sort((a, b) => a.off - b.off).slice(0, TIP_LINES);
  const rows = near.map(({ line }) => {
    const { series } = line;
    const place = nearestPlace(series, x, slack);
    const [low, high] = [series.low?.[place], series.high?.[place]];
    const spread = low !== undefined && low !== null && high !== undefined && high !== null ? `${formatValue(low, unit)} – ${formatValue(high, unit)}` : "";
    const count = series.counts ? `${series.counts[place]} of ${line.runs}` : "";
    const [text, shown] = [formatValue(series.y[place], unit), formatValue(line.drawn.y[place], unit)];
    return { id: line.id, title: line.title, style: line.style, text, note: [spread, count, shown !== text && `smoothed ${shown}`].filter(Boolean).join(", ") };
  });
  const first = near[0]?.line.series;
  const shown = first ? first.x[nearestPlace(first, x, slack)] : x;
  return { left: left + u.over.offsetLeft, top: Math.max(top - 10, 0), flip: left > u.over.clientWidth / 2, x: shown, rows };
}

type Scale = (value: number) => number;

function scales(u: uPlot): [Scale, Scale] {
  const linear = (from: number, to: number, start: number, size: number): Scale => (value) => start + ((value - from) / (to - from)) * size;
  const { bbox } = u;
  const [x0, x1, y0, y1] = [u.scales.x.min ?? 0, u.scales.x.max ?? 1, u.scales.y.min ?? 0, u.scales.y.max ?? 1];
  const toX = linear(x0, x1, bbox.left, bbox.width);
  if (u.scales.y.distr !== 3) return [toX, linear(y0, y1, bbox.top + bbox.height, -bbox.height)];
  const inner = linear(Math.log(y0), Math.log(y1), bbox.top + bbox.height, -bbox.height);
  return [toX, (value) => (value > 0 ? inner(Math.log(value)) : NaN)];
}

function drawLines(u: uPlot, lines: ManyLine[]): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio || 1;
  const [toX, toY] = scales(u);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineJoin = "bevel"; // round ones take twice as long
  for (const line of lines) fillBand(ctx, line, toX, toY, 0.16);
  const many = lines.length > MANY;
  ctx.globalAlpha = 0.25;
  ctx.lineWidth = ratio;
  if (lines.length <= FAINT) for (const line of lines) if (line.drawn !== line.series) strokeLine(ctx, line.series, { ...line.style, dash: [] }, toX, toY);
  for (const line of lines) {
    ctx.globalAlpha = line.pinned || !many ? 1 : 0.6;
    // Browsers draw a line of one pixel of the screen several times faster than a wider one.
    ctx.lineWidth = line.pinned ? 2.4 * ratio : many ? 1 : 1.4 * ratio;
    strokeLine(ctx, line.drawn, line.style, toX, toY);
  }
  ctx.restore();
}

function fillBand(ctx: CanvasRenderingContext2D, line: ManyLine, toX: Scale, toY: Scale, alpha: number): void {
  const { x, low, high } = line.drawn;
  if (!low || !high) return;
  ctx.globalAlpha = alpha;
  ctx.fillStyle = line.style.stroke;
  let start = -1;
  for (let at = 0; at <= x.length; at++) {
    const known = at < x.length && low[at] !== null && high[at] !== null && !Number.isNaN(toY(low[at]!));
    if (known && start < 0) start = at;
    if (known || start < 0) continue;
    ctx.beginPath();
    for (let k = start; k < at; k++) ctx.lineTo(toX(x[k]), toY(high[k]!));
    for (let k = at - 1; k >= start; k--) ctx.lineTo(toX(x[k]), toY(low[k]!));
    ctx.fill();
    start = -1;
  }
}

// Of the values within one column of pixels, the first, lowest, highest and last: the same picture with fewer strokes.
function strokeLine(ctx: CanvasRenderingContext2D, { x, y }: Drawable, { stroke, dash }: LineStyle, toX: Scale, toY: Scale): void {
  ctx.strokeStyle = stroke;
  ctx.setLineDash(dash.map((length) => length * (devicePixelRatio || 1)));
  ctx.beginPath();
  let begun = false;
  let column = NaN;
  let [low, high, last] = [0, 0, 0];
  const flush = () => {
    if (Number.isNaN(column)) return;
    if (low !== last) ctx.lineTo(column, low);
    if (high !== last) ctx.lineTo(column, high);
    ctx.lineTo(column, last);
    column = NaN;
  };
  let [points, lastX, lastY] = [0, 0, 0];
  for (let at = 0; at < x.length; at++) {
    const value = y[at];
    const top = value === null ? NaN : toY(value);
    if (Number.isNaN(top)) {
      flush();
      begun = false;
      continue;
    }
    const left = Math.round(toX(x[at]));
    points++;
    [lastX, lastY] = [left, top];
    if (!begun) {
      ctx.moveTo(left, top);
      begun = true;
    } else if (left === column) {
      if (top < high) high = top;
      if (top > low) low = top;
      last = top;
      continue;
    } else flush();
    column = left;
    low = high = last = top;
  }
  flush();
  ctx.stroke();
  if (points !== 1) return;
  // A single value would be invisible as a line.
  ctx.fillStyle = stroke;
  ctx.beginPath();
  ctx.arc(lastX, lastY, 3 * (devicePixelRatio || 1), 0, 7);
  ctx.fill();
}

// Above all lines, so that none of them is drawn again: a veil, and the line that is pointed at.
function drawPointed(u: uPlot, canvas: HTMLCanvasElement | null, lines: ManyLine[], id: string | null): void {
  if (!canvas) return;
  const { bbox } = u;
  if (canvas.width !== bbox.width || canvas.height !== bbox.height) [canvas.width, canvas.height] = [bbox.width, bbox.height];
  const ctx = canvas.getContext("2d")!;
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  const line = lines.find((item) => item.id === id);
  if (!line) return;
  ctx.globalAlpha = 0.55;
  ctx.fillStyle = css("--panel");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.translate(-bbox.left, -bbox.top);
  const [toX, toY] = scales(u);
  fillBand(ctx, line, toX, toY, 0.28);
  ctx.globalAlpha = 1;
  ctx.lineJoin = "bevel";
  ctx.lineWidth = 2.2 * (devicePixelRatio || 1);
  strokeLine(ctx, line.drawn, line.style, toX, toY);
}

function savePng(u: uPlot, props: ManyProps): void {
  const ratio = devicePixelRatio || 1;
  const source = u.ctx.canvas;
  const [width, height] = [source.width / ratio, source.height / ratio];
  const few = props.lines.length <= 12;
  savePicture({
    name: props.title, title: props.title + (props.unit ? ` (${props.unit})` : ""), width, height, foot: few ? 26 : 6, ratio,
    legend: few ? props.lines.map((line) => ({ text: line.title, ...line.style })) : [],
    draw: (context) => context.drawImage(source, 0, 0, width, height),
  });
}

// Words over time, such as throttle reasons: one row per GPU, one colour per word.
import { useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { dark, now, run, source, zoomOn } from "../data/store.ts";
import type { Panel, States } from "../data/types.ts";
import { lineStyle } from "../logic/colors.ts";
import { cell, fileName } from "../logic/csv.ts";
import { formatTimes, formatX } from "../logic/format.ts";
import { byDevice, seriesTitle } from "../logic/metrics.ts";
import { pieces, QUIET, wordAt, wordsOf } from "../logic/states.ts";
import { download } from "./download.ts";
import { savePicture } from "./picture.ts";
import { Tools, useFullScreen } from "./tools.tsx";

const AGAIN_MS = 5000;
const [LEFT, RIGHT, TOP, FOOT] = [62, 18, 4, 24]; // as the charts beside it, so that their time axes align
const ROOMY_ROWS = 24;
const LETTERS = 13; // pixels

export function StatesChart({ panel, axis }: { panel: Panel; axis: string }) {
  const known = run.value!;
  const box = useRef<HTMLElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [states, setStates] = useState<States[]>([]);
  const [width, setWidth] = useState(0);
  const [full, toggleFull] = useFullScreen(box);
  const tip = useSignal("");
  const round = known.live && source.value!.isLive ? Math.floor(now.value / AGAIN_MS) : 0;
  useEffect(() => {
    let current = true;
    source.value!.states(known.key, panel.table, panel.metrics).then((found) => current && setStates(found.sort(byDevice)), () => {});
    return () => {
      current = false;
    };
  }, [known.key, panel.id, round]);
  const some = states.length > 0;
  useEffect(() => {
    if (!canvas.current) return;
    const watcher = new ResizeObserver(() => setWidth(canvas.current?.clientWidth ?? 0));
    watcher.observe(canvas.current);
    return () => watcher.disconnect();
  }, [some]);
  const origin = axis === "relative" && known.started ? Date.parse(known.started) / 1000 : 0;
  const first = Math.min(...states.map((item) => item.changes[0][0]));
  const last = known.ended ? Date.parse(known.ended) / 1000 : now.value / 1000;
  const zoomed = zoomOn(axis);
  const start = zoomed ? zoomed.start + origin : first;
  const end = zoomed ? zoomed.end + origin : Math.max(last, first + 1);
  const words = wordsOf(states, start, end);
  const rowHeight = states.length > ROOMY_ROWS ? 5 : 16;
  const height = TOP + states.length * rowHeight + FOOT;
  const titles = states.map((item) => seriesTitle({ ...item, total: 0, x: [], y: [] }, states.map((other) => ({ ...other, total: 0, x: [], y: [] })), panel.by));
  const view: View = { states, titles, words, start, end, rowHeight, origin, isDark: dark.value };
  useEffect(() => {
    const target = canvas.current;
    if (!target || !width) return;
    const ratio = devicePixelRatio || 1;
    target.width = width * ratio;
    target.height = height * ratio;
    const context = target.getContext("2d")!;
    context.scale(ratio, ratio);
    draw(context, view, width);
  }, [states, width, start, end, dark.value]);
  if (!some) return null;
  const onMove = (event: MouseEvent) => {
    const place = canvas.current!.getBoundingClientRect();
    const row = Math.floor((event.clientY - place.top - TOP) / rowHeight);
    const share = (event.clientX - place.left - LEFT) / (place.width - LEFT - RIGHT);
    const item = states[row];
    const time = start + share * (end - start);
    tip.value = item && share >= 0 && share <= 1 ? `${titles[row]}, ${formatX(axis, time - origin)}: ${wordAt(item, time) ?? "unknown"}` : "";
  };
  return (
    <figure class={`chart states ${full.value ? "full" : ""}`} ref={box} data-chart={panel.title}>
      <figcaption>
        <h3 title={panel.title}>{panel.title}</h3>
        <span class="axis" role="status">{tip.value || (axis === "relative" ? "over time since start" : "over time")}</span>
        <Tools title={panel.title} onFull={toggleFull} onPng={() => savePng(view, panel.title, height)} onCsv={() => download(fileName(panel.title, "csv"), "text/csv", toCsv(states, titles))} />
      </figcaption>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${panel.title}: ${words.length ? words.join("; ") : "none"}`}
        style={{ height: `${height}px` }}
        onMouseMove={onMove}
        onMouseLeave={() => (tip.value = "")}
      />
      <ul class="legend">
        {words.slice(0, 12).map((word, at) => <li key={word}><i style={{ background: lineStyle(at, dark.value).stroke }} />{word}</li>)}
        <li><i class="quiet" />not throttled</li>
      </ul>
    </figure>
  );
}

interface View {
  states: States[];
  titles: string[];
  words: string[];
  start: number;
  end: number;
  rowHeight: number;
  origin: number;
  isDark: boolean;
}

function draw(context: CanvasRenderingContext2D, view: View, width: number): void {
  const style = getComputedStyle(document.documentElement);
  const across = (time: number) => LEFT + ((time - view.start) / (view.end - view.start)) * (width - LEFT - RIGHT);
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  // Where rows are thinner than letters, only some are named.
  const every = 2 ** Math.max(Math.ceil(Math.log2(LETTERS / view.rowHeight)), 0);
  view.states.forEach((item, row) => {
    const top = TOP + row * view.rowHeight;
    for (const piece of pieces(item, view.start, view.end)) {
      const left = across(piece.start);
      context.fillStyle = piece.word === QUIET ? style.getPropertyValue("--track") : lineStyle(view.words.indexOf(piece.word), view.isDark).stroke;
      const gap = view.rowHeight > 8 ? 1 : 0;
      context.fillRect(left, top + gap, Math.max(across(piece.end) - left, 1), view.rowHeight - 2 * gap);
    }
    if (row % every === 0) {
      context.fillStyle = style.getPropertyValue("--text-dim");
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(view.titles[row], LEFT - 6, top + view.rowHeight / 2, LEFT - 8);
      context.textBaseline = "alphabetic";
    }
  });
  context.fillStyle = style.getPropertyValue("--text-dim");
  context.textAlign = "center";
  const marks = timeMarks(view.start - view.origin, view.end - view.origin, Math.max(Math.floor(width / 110), 2));
  const texts = view.origin ? marks.map((mark) => formatX("relative", mark)) : formatTimes(marks);
  marks.forEach((mark, at) => context.fillText(texts[at], across(mark + view.origin), TOP + view.states.length * view.rowHeight + 16));
}

const SPANS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

function timeMarks(start: number, end: number, most: number): number[] {
  const step = SPANS.find((span) => (end - start) / span <= most) ?? 2_592_000;
  const found: number[] = [];
  for (let at = Math.ceil(start / step) * step; at <= end; at += step) found.push(at);
  return found;
}

function toCsv(states: States[], titles: string[]): string {
  const rows = states.flatMap((item, at) => item.changes.map(([time, word]) => [new Date(time * 1000).toISOString(), titles[at], word].map(cell).join(",")));
  return ["time,device,state", ...rows].join("\n") + "\n";
}

function savePng(view: View, title: string, height: number): void {
  const [width, foot] = [900, 26];
  const legend = view.words.slice(0, 8).map((text, at) => ({ text, stroke: lineStyle(at, view.isDark).stroke }));
  savePicture({ name: title, title, width, height, foot, legend, markHeight: 8, draw: (context) => draw(context, view, width) });
}

// Parallel coordinates and a scatter: each run of a sweep as a line over all axes, and as a dot over one of them.
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { dark } from "../data/store.ts";
import { heat } from "../logic/colors.ts";
import { formatTick, stepBrush, ticksOf, valueAt, type Brushes, type Scale } from "../logic/sweep.ts";
import { css } from "./chart.tsx";

export interface Spot {
  key: string;
  title: string;
  // On each scale, 0 to 1; null where the run has no value.
  shares: (number | null)[];
  // What it came to, as a share of all; null if that is not known.
  color: number | null;
  within: boolean;
  text: string;
}

// The axis of a metric goes from dark to bright; nearly black and nearly white would not be seen on their page.
function colorOf(share: number | null): string {
  if (share === null) return css("--text-dim");
  return `rgb(${heat(dark.value ? 0.25 + 0.75 * share : 0.85 * share).join()})`;
}

// A canvas as wide as its place, drawn again when that changes.
function useCanvas(height: number, draw: (context: CanvasRenderingContext2D, width: number) => void, on: unknown[]) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(canvas.current?.parentElement?.clientWidth ?? 0));
    if (canvas.current?.parentElement) watcher.observe(canvas.current.parentElement);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    const target = canvas.current;
    if (!target || !width) return;
    const ratio = devicePixelRatio || 1;
    [target.width, target.height] = [width * ratio, height * ratio];
    const context = target.getContext("2d")!;
    context.scale(ratio, ratio);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    draw(context, width);
  }, [width, height, dark.value, ...on]);
  return [canvas, width] as const;
}

const TOP = 34, BOTTOM = 14, SIDE = 52, TALL = 324;
const LABEL = 14; // pixels from one label to the next
const REACH = 14;

export interface ParallelProps {
  scales: Scale[];
  titles: ReadonlyMap<string, string>;
  spots: Spot[];
  brushes: Brushes;
  pointed: Signal<string | null>;
  onBrush(key: string, range: [number, number] | null): void;
  onMove(key: string, place: number): void;
  onOpen(key: string): void;
}

export function Parallel({ scales, titles, spots, brushes, pointed, onBrush, onMove, onOpen }: ParallelProps) {
  const drag = useSignal<{ key: string; from: number; to: number } | null>(null);
  const toX = (at: number, wide: number) => SIDE + (at * (wide - 2 * SIDE)) / Math.max(scales.length - 1, 1);
  const toY = (share: number) => TALL - BOTTOM - share * (TALL - TOP - BOTTOM);
  const line = (context: CanvasRenderingContext2D, spot: Spot, wide: number) => {
    context.beginPath();
    let begun = false;
    spot.shares.forEach((share, at) => {
      if (share === null) begun = false;
      else if (begun) context.lineTo(toX(at, wide), toY(share));
      else (context.moveTo(toX(at, wide), toY(share)), (begun = true));
    });
    context.stroke();
  };
  const [canvas, width] = useCanvas(TALL, (context, wide) => {
    context.lineWidth = 1;
    for (const within of [false, true]) {
      context.globalAlpha = within ? (spots.length > 200 ? 0.45 : 0.8) : 0.06;
      for (const spot of spots) {
        if (spot.within !== within) continue;
        context.strokeStyle = within ? colorOf(spot.color) : css("--text-dim");
        line(context, spot, wide);
      }
    }
    context.globalAlpha = 1;
    scales.forEach((scale, at) => {
      const x = toX(at, wide);
      context.strokeStyle = css("--text-dim");
      context.beginPath();
      context.moveTo(x, TOP);
      context.lineTo(x, TALL - BOTTOM);
      context.stroke();
      const range = brushes.get(scale.key);
      if (range) {
        context.fillStyle = css("--accent");
        context.globalAlpha = 0.35;
        context.fillRect(x - 6, toY(range[1]), 12, toY(range[0]) - toY(range[1]));
        context.globalAlpha = 1;
      }
      context.fillStyle = css("--text");
      context.textAlign = "right";
      for (const [label, share] of ticksOf(scale, 2, LABEL / (TALL - TOP - BOTTOM))) write(context, shorten(context, label, at ? 60 : SIDE - 6), x - 5, toY(share) + 4);
    });
  }, [scales, spots, brushes]);
  const [overlay] = useCanvas(TALL, (context, wide) => {
    const spot = spots.find((item) => item.key === pointed.value);
    if (!spot) return;
    context.lineWidth = 3;
    context.strokeStyle = css("--accent");
    line(context, spot, wide);
  }, [pointed.value, scales, spots]);
  const where = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top] as const;
  };
  const shareAt = (y: number) => Math.min(Math.max((TALL - BOTTOM - y) / (TALL - TOP - BOTTOM), 0), 1);
  const axisAt = (x: number) => scales.find((_, at) => Math.abs(toX(at, width) - x) <= REACH);
  const spotAt = (x: number, y: number): Spot | undefined => {
    let [best, nearest]: [Spot | undefined, number] = [undefined, 8];
    for (const spot of spots) {
      if (!spot.within) continue;
      for (let at = 0; at + 1 < scales.length; at++) {
        const [left, right, a, b] = [toX(at, width), toX(at + 1, width), spot.shares[at], spot.shares[at + 1]];
        if (x < left || x > right || a === null || b === null) continue;
        const off = Math.abs(toY(a + ((b - a) * (x - left)) / (right - left)) - y);
        if (off < nearest) [best, nearest] = [spot, off];
      }
    }
    return best;
  };
  const onPoint = (event: PointerEvent) => {
    const [x, y] = where(event);
    if (drag.value) drag.value = { ...drag.value, to: shareAt(y) };
    else pointed.value = spotAt(x, y)?.key ?? null;
  };
  const onUp = (event: PointerEvent) => {
    const held = drag.value;
    drag.value = null;
    const [x, y] = where(event);
    if (held) onBrush(held.key, Math.abs(held.from - held.to) < 0.01 ? null : [Math.min(held.from, held.to), Math.max(held.from, held.to)]);
    else {
      const spot = spotAt(x, y);
      if (spot) onOpen(spot.key);
    }
  };
  const held = drag.value;
  const heldAt = held ? scales.findIndex((scale) => scale.key === held.key) : -1;
  const room = Math.max((width - 2 * SIDE) / Math.max(scales.length - 1, 1) - 6, 40);
  return (
    <div class="parallel" style={{ height: `${TALL}px` }}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${spots.length} runs over ${scales.map((scale) => titles.get(scale.key)).join(", ")}. Drag along an axis to choose a range, click it to clear.`}
        onPointerDown={(event) => {
          const [x, y] = where(event);
          const scale = axisAt(x);
          if (!scale) return;
          canvas.current!.setPointerCapture(event.pointerId);
          drag.value = { key: scale.key, from: shareAt(y), to: shareAt(y) };
        }}
        onPointerMove={onPoint}
        onPointerUp={onUp}
        onPointerLeave={() => (pointed.value = null)}
      />
      <canvas ref={overlay} class="pointed" />
      {width > 0 && scales.map((scale, at) => (
        <AxisHead
          key={scale.key}
          scale={scale}
          title={titles.get(scale.key) ?? scale.key}
          range={brushes.get(scale.key)}
          left={toX(at, width)}
          room={Math.min(room, 2 * Math.min(toX(at, width), width - toX(at, width)))}
          onBrush={(range) => onBrush(scale.key, range)}
          onShift={(by) => onMove(scale.key, Math.min(Math.max(at + by, 0), scales.length - 1))}
          onDrop={(x) => onMove(scale.key, Math.min(Math.max(Math.round(((x - SIDE) / (width - 2 * SIDE)) * (scales.length - 1)), 0), scales.length - 1))}
        />
      ))}
      {held && <i class="held" style={{ left: `${toX(heldAt, width) - 7}px`, top: `${toY(Math.max(held.from, held.to))}px`, height: `${Math.abs(toY(held.from) - toY(held.to))}px` }} />}
    </div>
  );
}

interface HeadProps {
  scale: Scale;
  title: string;
  range: readonly [number, number] | undefined;
  left: number;
  room: number;
  onBrush(range: [number, number] | null): void;
  onShift(by: number): void;
  onDrop(x: number): void;
}

// The name of an axis: dragged, it moves the axis; with the keyboard, it also chooses a range.
function AxisHead({ scale, title, range, left, room, onBrush, onShift, onDrop }: HeadProps) {
  const by = useSignal<number | null>(null);
  const button = useRef<HTMLButtonElement>(null);
  const start = useRef(0);
  const isMoved = useRef(false);
  useEffect(() => {
    // The browser takes the focus from what is put at another place.
    if (isMoved.current) button.current?.focus();
    isMoved.current = false;
  }, [left]);
  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const end = event.shiftKey ? "low" : "high";
    const shift = (way: number) => {
      isMoved.current = true;
      onShift(way);
    };
    const moves: Record<string, () => void> = {
      ArrowUp: () => onBrush(stepBrush(scale, range, end, 1)),
      ArrowDown: () => onBrush(stepBrush(scale, range, end, -1)),
      Delete: () => onBrush(null),
      Backspace: () => onBrush(null),
      ArrowLeft: () => shift(-1),
      ArrowRight: () => shift(1),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  };
  const chosen = range ? `, from ${labelAt(scale, range[0], "low")} to ${labelAt(scale, range[1], "high")}` : "";
  return (
    <button
      type="button"
      ref={button}
      class={`axis-head ${range ? "on" : ""} ${by.value === null ? "" : "dragged"}`}
      title={`${title}${chosen}. Drag sideways to move the axis. Keys: up and down change the upper end of its range, with Shift the lower end; Delete clears it; left and right move the axis.`}
      aria-label={`axis ${title}${chosen}`}
      style={{ left: `${left}px`, maxWidth: `${room}px`, transform: `translateX(calc(-50% + ${by.value ?? 0}px))` }}
      onKeyDown={onKey}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        start.current = event.clientX;
        by.value = 0;
      }}
      onPointerMove={(event) => by.value !== null && (by.value = event.clientX - start.current)}
      onPointerUp={() => {
        const moved = by.value ?? 0;
        by.value = null;
        if (Math.abs(moved) > 4) onDrop(left + moved);
      }}
      onPointerCancel={() => (by.value = null)}
    >
      {title}
    </button>
  );
}

// What lies at an end of a range: of categories, the outermost one within it.
function labelAt(scale: Scale, share: number, end: "low" | "high"): string {
  if (scale.kind !== "category") return formatTick(+valueAt(scale, share).toPrecision(3));
  const inner = share * scale.names.length;
  const at = end === "low" ? Math.ceil(inner - 0.5) : Math.floor(inner - 0.5);
  return scale.names[Math.min(Math.max(at, 0), scale.names.length - 1)];
}

const LEFT = 58, RIGHT = 24, HIGH = 300, FOOT = 30;

// The first scale across, the second up.
export function Scatter({ scales, titles, spots, best, pointed, onOpen }: { scales: [Scale, Scale]; titles: ReadonlyMap<string, string>; spots: Spot[]; best: string | null; pointed: Signal<string | null>; onOpen(key: string): void }) {
  const [across, up] = scales;
  const toX = (share: number, wide: number) => LEFT + share * (wide - LEFT - RIGHT);
  const toY = (share: number) => HIGH - FOOT - share * (HIGH - FOOT - 12);
  const shown = spots.filter((spot) => spot.shares[0] !== null && spot.shares[1] !== null);
  const [canvas, width] = useCanvas(HIGH, (context, wide) => {
    context.strokeStyle = css("--grid");
    context.fillStyle = css("--text-dim");
    for (const [label, share] of ticksOf(across, 4, across.kind === "category" ? 0 : 52 / (wide - LEFT - RIGHT))) {
      context.strokeRect(toX(share, wide), 12, 0, HIGH - FOOT - 12);
      context.textAlign = "center";
      context.fillText(shorten(context, label, across.kind === "category" ? (wide - LEFT - RIGHT) / across.names.length - 4 : 90), toX(share, wide), HIGH - FOOT + 16);
    }
    for (const [label, share] of ticksOf(up, 4, LABEL / (HIGH - FOOT - 12))) {
      context.strokeRect(LEFT, toY(share), wide - LEFT - RIGHT, 0);
      context.textAlign = "right";
      context.fillText(shorten(context, label, 50), LEFT - 6, toY(share) + 4);
    }
    for (const spot of shown) {
      context.globalAlpha = spot.within ? 0.8 : 0.12;
      context.fillStyle = colorOf(spot.color);
      context.beginPath();
      context.arc(toX(spot.shares[0]!, wide), toY(spot.shares[1]!), 4, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    const ring = (key: string | null, color: string) => {
      const spot = shown.find((item) => item.key === key);
      if (!spot) return;
      context.strokeStyle = color;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(toX(spot.shares[0]!, wide), toY(spot.shares[1]!), 7, 0, 7);
      context.stroke();
    };
    ring(best, css("--ok"));
    ring(pointed.value, css("--accent"));
  }, [scales, spots, best, pointed.value]);
  const at = (event: MouseEvent): Spot | undefined => {
    const box = canvas.current!.getBoundingClientRect();
    const off = (spot: Spot) => Math.hypot(toX(spot.shares[0]!, width) - (event.clientX - box.left), toY(spot.shares[1]!) - (event.clientY - box.top));
    const near = shown.filter((spot) => spot.within && off(spot) < 14);
    return near.sort((a, b) => off(a) - off(b))[0];
  };
  const onKey = (event: KeyboardEvent) => {
    const way = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (event.key === "Enter" && pointed.value) onOpen(pointed.value);
    if (!way) return;
    event.preventDefault();
    const ordered = shown.filter((spot) => spot.within).sort((a, b) => a.shares[0]! - b.shares[0]! || a.shares[1]! - b.shares[1]!);
    const place = ordered.findIndex((spot) => spot.key === pointed.value);
    const next = place < 0 ? 0 : Math.min(Math.max(place + way, 0), ordered.length - 1);
    pointed.value = ordered[next]?.key ?? null;
  };
  return (
    <div class="parallel" style={{ height: `${HIGH}px` }}>
      <canvas
        ref={canvas}
        role="img"
        tabIndex={0}
        aria-label={`${titles.get(up.key)} by ${titles.get(across.key)} of ${shown.length} runs. Left and right switch runs, Enter opens one.`}
        onKeyDown={onKey}
        onPointerMove={(event) => (pointed.value = at(event)?.key ?? null)}
        onPointerLeave={() => (pointed.value = null)}
        onClick={(event) => {
          const spot = at(event);
          if (spot) onOpen(spot.key);
        }}
      />
    </div>
  );
}

// Readable on top of lines.
function write(context: CanvasRenderingContext2D, text: string, x: number, y: number): void {
  context.save();
  context.strokeStyle = css("--panel");
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
  context.restore();
}

function shorten(context: CanvasRenderingContext2D, text: string, room: number): string {
  let kept = text;
  while (kept.length > 2 && context.measureText(kept).width > room) kept = `${kept.slice(0, -2)}…`;
  return kept;
}

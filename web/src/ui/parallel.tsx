// Parallel coordinates and a scatter: each run of a sweep as a line over all axes, and as a dot over one of them.
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { dark } from "../data/store.ts";
import { heat } from "../logic/colors.ts";
import { formatShort } from "../logic/format.ts";
import { valueAt, type Brushes, type Scale } from "../logic/sweep.ts";
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

const TOP = 30, BOTTOM = 14, SIDE = 46, TALL = 320;
const REACH = 14;

export function Parallel({ scales, spots, brushes, pointed, onBrush, onOpen }: { scales: Scale[]; spots: Spot[]; brushes: Brushes; pointed: Signal<string | null>; onBrush(key: string, range: [number, number] | null): void; onOpen(key: string): void }) {
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
      context.textAlign = "center";
      context.fillStyle = css("--text");
      const room = Math.max((wide - 2 * SIDE) / Math.max(scales.length - 1, 1) - 8, 40);
      context.fillText(shorten(context, scale.key, room), x, 14);
      context.textAlign = "right";
      const labels = scale.kind === "category" ? scale.names.map((name, place): [string, number] => [name, (place + 0.5) / scale.names.length]) : [0, 0.5, 1].map((share): [string, number] => [formatShort(+valueAt(scale, share).toPrecision(2)), share]);
      for (const [label, share] of labels.length > 14 ? [labels[0], labels[labels.length - 1]] : labels) write(context, shorten(context, label, 60), x - 5, toY(share) + 4);
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
  const onMove = (event: PointerEvent) => {
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
  return (
    <div class="parallel" style={{ height: `${TALL}px` }}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${spots.length} runs over ${scales.map((scale) => scale.key).join(", ")}. Drag along an axis to choose a range, click it to clear.`}
        onPointerDown={(event) => {
          const [x, y] = where(event);
          const scale = axisAt(x);
          if (!scale) return;
          canvas.current!.setPointerCapture(event.pointerId);
          drag.value = { key: scale.key, from: shareAt(y), to: shareAt(y) };
        }}
        onPointerMove={onMove}
        onPointerUp={onUp}
        onPointerLeave={() => (pointed.value = null)}
      />
      <canvas ref={overlay} class="pointed" />
      {held && <i class="held" style={{ left: `${toX(heldAt, width) - 7}px`, top: `${toY(Math.max(held.from, held.to))}px`, height: `${Math.abs(toY(held.from) - toY(held.to))}px` }} />}
    </div>
  );
}

const LEFT = 58, RIGHT = 14, HIGH = 300, FOOT = 30;

// The first scale across, the second up.
export function Scatter({ scales, spots, best, pointed, onOpen }: { scales: [Scale, Scale]; spots: Spot[]; best: string | null; pointed: Signal<string | null>; onOpen(key: string): void }) {
  const [across, up] = scales;
  const toX = (share: number, wide: number) => LEFT + share * (wide - LEFT - RIGHT);
  const toY = (share: number) => HIGH - FOOT - share * (HIGH - FOOT - 12);
  const shown = spots.filter((spot) => spot.shares[0] !== null && spot.shares[1] !== null);
  const [canvas, width] = useCanvas(HIGH, (context, wide) => {
    const ticks = (scale: Scale) => (scale.kind === "category" ? scale.names.map((name, at): [string, number] => [name, (at + 0.5) / scale.names.length]) : [0, 0.25, 0.5, 0.75, 1].map((share): [string, number] => [formatShort(+valueAt(scale, share).toPrecision(2)), share]));
    context.strokeStyle = css("--grid");
    context.fillStyle = css("--text-dim");
    for (const [label, share] of ticks(across)) {
      context.strokeRect(toX(share, wide), 12, 0, HIGH - FOOT - 12);
      context.textAlign = "center";
      context.fillText(shorten(context, label, 90), toX(share, wide), HIGH - FOOT + 16);
    }
    for (const [label, share] of ticks(up)) {
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
        aria-label={`${up.key} by ${across.key} of ${shown.length} runs. Left and right go from run to run, Enter opens it.`}
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

// A table of any number of rows, of which only those in view are in the page.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { windowOf } from "../logic/window.ts";
import { Table, type TableColumn, type TableRow } from "./table.tsx";

const SHORT = 200; // rows that are all drawn, so that the browser finds text in them
const BEYOND = 1000; // px above and below the window that are drawn too
const STRIDE = 400; // px to scroll before other rows are drawn
const GUESS = 35; // px of a row, before one was drawn

interface Properties<T> {
  class?: string;
  columns: TableColumn[];
  items: T[];
  keyOf(item: T): string;
  rowOf(item: T): TableRow;
}

export function LongTable<T>({ class: name, columns, items, keyOf, rowOf }: Properties<T>) {
  const box = useRef<HTMLDivElement>(null);
  const known = useRef({ heights: new Map<string, number>(), usual: 0, width: 0 }).current;
  const [top, setTop] = useState(0); // where the window begins, from the first row
  const isShort = items.length <= SHORT;
  const heights = isShort ? [] : items.map((item) => known.heights.get(keyOf(item)) ?? (known.usual || GUESS));
  const drawn = isShort ? { from: 0, to: items.length, above: 0, below: 0 } : windowOf(heights, top - BEYOND, top + innerHeight + STRIDE + BEYOND);
  const look = () => {
    const body = box.current?.querySelector("tbody");
    if (body) setTop(Math.floor(-body.getBoundingClientRect().top / STRIDE) * STRIDE);
  };
  useLayoutEffect(() => {
    if (isShort) return;
    const rows = [...box.current!.querySelectorAll<HTMLElement>("tbody > tr[aria-rowindex]")];
    if (known.width !== innerWidth) { // lines break elsewhere
      known.heights.clear();
      known.usual = 0;
      known.width = innerWidth;
    }
    rows.forEach((row, at) => known.heights.set(keyOf(items[drawn.from + at]), row.getBoundingClientRect().height));
    // Once for all: what is guessed must not move while it is scrolled.
    if (rows.length) known.usual ||= rows.reduce((sum, row) => sum + row.getBoundingClientRect().height, 0) / rows.length;
  });
  useLayoutEffect(look, [items]);
  useEffect(() => {
    if (isShort) return;
    let frame = 0;
    const later = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        look();
      });
    };
    document.addEventListener("scroll", later, { capture: true, passive: true });
    window.addEventListener("resize", later);
    return () => {
      cancelAnimationFrame(frame);
      document.removeEventListener("scroll", later, { capture: true });
      window.removeEventListener("resize", later);
    };
  }, [isShort]);
  const rows = items.slice(drawn.from, drawn.to).map(rowOf);
  return <div ref={box}><Table class={name} columns={columns} rows={rows} part={isShort ? undefined : { ...drawn, count: items.length }} /></div>;
}

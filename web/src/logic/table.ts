// The table of runs: columns, filter, sort and group. Names are hostile: nothing here indexes an object unchecked.
import type { Row, Runs } from "../data/types.ts";
import { toNumber } from "./format.ts";
import { own, searchRows, type Part } from "./search.ts";

export type ColumnId = string; // "name", "config.lr", "summary.loss"

function read(row: Row, id: ColumnId): unknown {
  if (id.startsWith("config.")) return own(row.config, id.slice(7));
  if (id.startsWith("summary.")) return own(row.summary, id.slice(8));
  return own(row as unknown as Record<string, unknown>, id);
}

export const compareCells = { read };

const MOST_READ = 2000;

// The columns worth showing: what most of these runs logged, and configuration that differs between them. `keyMetrics`
// are patterns, that of the metric to show first first (views/data/key_metrics.py).
export function interesting(rows: Row[], keyMetrics: string[], most = 2000): ColumnId[] {
  const read = rows.slice(0, MOST_READ);
  const config = new Map<string, { count: number; first: unknown; differs: boolean }>();
  for (const row of read) {
    for (const name of Object.keys(row.config)) {
      const value = row.config[name];
      const seen = config.get(name);
      if (!seen) config.set(name, { count: 1, first: value, differs: false });
      else {
        seen.count += 1;
        seen.differs ||= value !== seen.first && JSON.stringify(value) !== JSON.stringify(seen.first);
      }
    }
  }
  const measured = orderMetrics(read.map((row) => row.summary), keyMetrics).map((name) => `summary.${name}`);
  const byCount = [...config].sort(([, a], [, b]) => b.count - a.count);
  const differing = byCount.filter(([, seen]) => seen.differs).map(([name]) => `config.${name}`);
  const same = byCount.filter(([, seen]) => !seen.differs).map(([name]) => `config.${name}`);
  return [...measured.slice(0, 3), ...differing, ...measured.slice(3), ...same].slice(0, most);
}

// First what at least half of these runs logged, by rank, then the others by count.
export function orderMetrics(summaries: Row["summary"][], keyMetrics: string[]): string[] {
  const counts = new Map<string, number>();
  for (const summary of summaries) for (const name of Object.keys(summary)) counts.set(name, (counts.get(name) ?? 0) + 1);
  const patterns = keyMetrics.map((pattern) => new RegExp(pattern, "s"));
  const rank = (name: string) => patterns.findIndex((pattern) => pattern.test(name)) >>> 0; // none is the highest
  const named = [...counts].map(([name, count]) => ({ name, count, rank: rank(name), isCommon: count * 2 >= summaries.length }));
  named.sort((a, b) => (
    Number(b.isCommon) - Number(a.isCommon) || (a.isCommon ? a.rank - b.rank || b.count - a.count : b.count - a.count || a.rank - b.rank) || (a.name < b.name ? -1 : 1)
  ));
  return named.map((item) => item.name);
}

// Of runs beside each other: their names, or their ids where two share one, as in the terminal and in reports.
export function runTitles(rows: readonly { name: string; id: string }[]): string[] {
  return rows.map((row) => (rows.filter((other) => other.name === row.name).length > 1 ? row.id : row.name));
}

// No two of the same name: "lr (config)" and "lr (last)" where both are shown, or where `taken` has it.
export function columnTitles(ids: ColumnId[], taken: string[]): Map<ColumnId, string> {
  const counts = new Map<string, number>();
  for (const name of [...taken, ...ids.map(columnName)]) counts.set(name, (counts.get(name) ?? 0) + 1);
  return new Map(ids.map((id) => {
    const isShared = counts.get(columnName(id))! > 1;
    return [id, isShared ? `${columnName(id)} (${columnKind(id)})` : columnName(id)];
  }));
}

export function columnName(id: ColumnId): string {
  return id.replace(/^(config|summary)\./, "");
}

export function columnKind(id: ColumnId): string {
  return id.startsWith("config.") ? "config" : "last";
}

export function filterRows(rows: Row[], wanted: { parts: Part[]; status: string; project: string }): Row[] {
  const chosen = rows.filter((row) => (!wanted.status || row.status === wanted.status) && (!wanted.project || row.project === wanted.project));
  return searchRows(chosen, wanted.parts);
}

// By one column; "-" in front turns it round.
export function sortRows(rows: Row[], sort: string): Row[] {
  const down = sort.startsWith("-");
  const id = down ? sort.slice(1) : sort;
  return sortBy(rows, (row) => read(row, id), down);
}

// What is missing comes last either way, and numbers are before texts: the order of
// src/trainvitals/views/data/run_order.py, tested against tests/data/run_order.json.
export function sortBy<T>(items: T[], read: (item: T) => unknown, down: boolean): T[] {
  const numbers: { item: T; place: number }[] = [];
  const texts: { item: T; place: number }[] = [];
  const missing: T[] = [];
  const cells = items.map((item) => {
    const cell = read(item);
    return toNumber(cell as number) ?? toText(cell);
  });
  // Comparing texts is slow: each of them once.
  const places = new Map([...new Set(cells.filter((cell) => typeof cell === "string"))].sort(collator.compare).map((text, at) => [text, at]));
  cells.forEach((cell, at) => {
    const item = items[at];
    if (typeof cell === "string") cell ? texts.push({ item, place: places.get(cell)! }) : missing.push(item);
    else Number.isNaN(cell) ? missing.push(item) : numbers.push({ item, place: cell });
  });
  const order = (a: { place: number }, b: { place: number }) => (a.place === b.place ? 0 : a.place < b.place === down ? 1 : -1);
  const parts = [numbers.sort(order), texts.sort(order)];
  if (down) parts.reverse();
  return [...parts.flat().map(({ item }) => item), ...missing];
}

const collator = new Intl.Collator("en", { numeric: true });

function toText(value: unknown): string {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.map(toText).join(",") : JSON.stringify(value);
}

// What a list shows after an answer that has only what changed; the same object if nothing did.
export function mergeRuns(known: Runs | null, answer: Runs): Runs {
  if (!known || answer.since !== known.version) return answer;
  if (answer.version === known.version) return known;
  const rows = new Map(known.runs.map((row) => [row.key, row]));
  for (const row of answer.runs) rows.set(row.key, row);
  const order = answer.order ?? known.runs.map((row) => row.key);
  return { ...answer, since: null, order: null, runs: order.flatMap((key) => rows.get(key) ?? []) };
}

export function groupRows(rows: Row[], by: string): { name: string; rows: Row[] }[] {
  if (!by) return [{ name: "", rows }];
  const groups = new Map<string, Row[]>();
  for (const row of rows) {
    const cell = read(row, by);
    const names = Array.isArray(cell) ? (cell.length ? cell.map(String) : ["none"]) : [cell === undefined || cell === null || cell === "" ? "none" : String(cell)];
    for (const name of names) {
      const known = groups.get(name);
      if (known) known.push(row);
      else groups.set(name, [row]);
    }
  }
  return [...groups].sort(([a], [b]) => collator.compare(a, b)).map(([name, found]) => ({ name, rows: found }));
}

// The table of runs: columns, filter, sort and group. Names are hostile: nothing here indexes an object unchecked.
import type { Row } from "../data/types.ts";
import { toNumber } from "./format.ts";
import { own, searchRows, type Part } from "./search.ts";

export type ColumnId = string; // "name", "config.lr", "summary.loss"

function read(row: Row, id: ColumnId): unknown {
  if (id.startsWith("config.")) return own(row.config, id.slice(7));
  if (id.startsWith("summary.")) return own(row.summary, id.slice(8));
  return own(row as unknown as Record<string, unknown>, id);
}

export const compareCells = { read };

// The columns worth showing: what most of these runs logged, and configuration that differs between them.
export function interesting(rows: Row[], most = 2000): ColumnId[] {
  const summary = new Map<string, number>();
  const config = new Map<string, { count: number; values: Set<string> }>();
  const read = rows.slice(0, 2000);
  for (const row of read) {
    for (const name of Object.keys(row.summary)) summary.set(name, (summary.get(name) ?? 0) + 1);
    for (const [name, value] of Object.entries(row.config)) {
      const seen = config.get(name) ?? { count: 0, values: new Set() };
      seen.count += 1;
      if (seen.values.size < 2) seen.values.add(JSON.stringify(value));
      config.set(name, seen);
    }
  }
  const isCommon = (count: number) => count * 2 >= read.length;
  const measured = [...summary].sort(([a, na], [b, nb]) => (
    Number(isCommon(nb)) - Number(isCommon(na)) || (isCommon(na) ? rank(a) - rank(b) || nb - na : nb - na || rank(a) - rank(b)) || a.localeCompare(b)
  )).map(([name]) => `summary.${name}`);
  const byCount = [...config].sort(([, a], [, b]) => b.count - a.count);
  const differing = byCount.filter(([, seen]) => seen.values.size > 1).map(([name]) => `config.${name}`);
  const same = byCount.filter(([, seen]) => seen.values.size <= 1).map(([name]) => `config.${name}`);
  return [...measured.slice(0, 3), ...differing, ...measured.slice(3), ...same].slice(0, most);
}

// The loss of the training, then what was validated, then accuracy.
function rank(name: string): number {
  const isLoss = /(^|[/_.])loss$/.test(name);
  if (/(^|[/_.])(val|valid|validation|eval|test)([/_.]|$)/.test(name)) return isLoss ? 1 : 2;
  return isLoss ? 0 : /(^|[/_.])acc(uracy)?$/.test(name) ? 3 : 4;
}

// No two of the same name: "lr (config)" and "lr (last)" where both are shown, or where `taken` has it.
export function columnTitles(ids: ColumnId[], taken: string[]): Map<ColumnId, string> {
  const names = [...taken, ...ids.map(columnName)];
  return new Map(ids.map((id) => {
    const isShared = names.filter((name) => name === columnName(id)).length > 1;
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

// By one column; "-" in front turns it round. What is missing comes last either way.
export function sortRows(rows: Row[], sort: string): Row[] {
  const down = sort.startsWith("-");
  const id = down ? sort.slice(1) : sort;
  const keyed = rows.map((row, at) => ({ row, at, cell: read(row, id) }));
  keyed.sort((a, b) => {
    const order = compareValues(a.cell, b.cell, down);
    return order || a.at - b.at;
  });
  return keyed.map((item) => item.row);
}

const collator = new Intl.Collator(undefined, { numeric: true });

// What is missing comes last either way.
export function compareValues(a: unknown, b: unknown, down: boolean): number {
  const missing = (value: unknown) => value === null || value === undefined || value === "" || value === "NaN" || Number.isNaN(value);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  const left = toNumber(a as number);
  const right = toNumber(b as number);
  const order = left !== null && right !== null ? left - right : collator.compare(String(a), String(b));
  return down ? -order : order;
}

export function groupRows(rows: Row[], by: string): { name: string; rows: Row[] }[] {
  if (!by) return [{ name: "", rows }];
  const groups = new Map<string, Row[]>();
  for (const row of rows) {
    const cell = read(row, by);
    const names = Array.isArray(cell) ? (cell.length ? cell.map(String) : ["none"]) : [cell === undefined || cell === null || cell === "" ? "none" : String(cell)];
    for (const name of names) groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  return [...groups].sort(([a], [b]) => collator.compare(a, b)).map(([name, found]) => ({ name, rows: found }));
}

// The table of runs: columns, filter, sort and group. Names are hostile: nothing here indexes an object unchecked.
import type { Row } from "../data/types.ts";
import { toNumber } from "./format.ts";

export type ColumnId = string; // "name", "config.lr", "summary.loss"

function own(object: Record<string, unknown>, key: string): unknown {
  return Object.hasOwn(object, key) ? object[key] : undefined;
}

function read(row: Row, id: ColumnId): unknown {
  if (id.startsWith("config.")) return own(row.config, id.slice(7));
  if (id.startsWith("summary.")) return own(row.summary, id.slice(8));
  return own(row as unknown as Record<string, unknown>, id);
}

export const compareCells = { read };

// The columns worth showing: what was logged, and configuration that differs between runs; the most common first.
export function interesting(rows: Row[], most = 60): ColumnId[] {
  const summary = new Map<string, number>();
  const config = new Map<string, Set<string>>();
  for (const row of rows.slice(0, 2000)) {
    for (const name of Object.keys(row.summary)) summary.set(name, (summary.get(name) ?? 0) + 1);
    for (const [name, value] of Object.entries(row.config)) {
      const seen = config.get(name) ?? new Set();
      if (seen.size < 5) seen.add(JSON.stringify(value));
      config.set(name, seen);
    }
  }
  const rank = (name: string) => (name === "loss" ? 0 : name.includes("val") ? 1 : name === "accuracy" ? 2 : 3);
  const measured = [...summary].sort(([a, na], [b, nb]) => rank(a) - rank(b) || nb - na || a.localeCompare(b)).map(([name]) => `summary.${name}`);
  const differing = [...config].filter(([, values]) => values.size > 1).map(([name]) => `config.${name}`);
  const same = [...config].filter(([, values]) => values.size <= 1).map(([name]) => `config.${name}`);
  return [...measured.slice(0, 3), ...differing, ...measured.slice(3), ...same].slice(0, most);
}

const CONDITION = /^([\w./-]+)(<=|>=|!=|=|<|>)(.+)$/;

// Words that must occur, and conditions such as lr>0.01 or optimizer=adam.
export function filterRows(rows: Row[], wanted: { text: string; status: string; project: string }): Row[] {
  const words = wanted.text.trim().split(/\s+/).filter(Boolean);
  const conditions = words.map((word) => CONDITION.exec(word));
  return rows.filter((row) => {
    if (wanted.status && row.status !== wanted.status) return false;
    if (wanted.project && row.project !== wanted.project) return false;
    return words.every((word, at) => {
      const condition = conditions[at];
      if (condition) {
        const [, name, operator, value] = condition;
        const cell = own(row.config, name) ?? own(row.summary, name) ?? own(row as unknown as Record<string, unknown>, name);
        if (cell !== undefined && cell !== null) return holds(cell, operator, value);
      }
      return searched(row).includes(word.toLowerCase());
    });
  });
}

function holds(cell: unknown, operator: string, value: string): boolean {
  const left = toNumber(cell as number | string);
  const right = Number(value);
  if (left !== null && !Number.isNaN(right)) {
    if (operator === "=") return left === right;
    if (operator === "!=") return left !== right;
    if (operator === "<") return left < right;
    if (operator === ">") return left > right;
    return operator === "<=" ? left <= right : left >= right;
  }
  const same = String(cell).toLowerCase() === value.toLowerCase();
  return operator === "=" ? same : operator === "!=" ? !same : false;
}

function searched(row: Row): string {
  const config = Object.entries(row.config).map(([key, value]) => `${key}=${value}`);
  return [row.id, row.name, row.project, row.status, row.host, ...row.tags, ...config].join(" ").toLowerCase();
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

// What a chart shows, as CSV. A cell that a spreadsheet would run as a formula is made text.
import type { Series } from "../data/types.ts";
import { join } from "./align.ts";

export function toCsv(axis: string, series: Series[], titles: string[]): string {
  const words = series.map((item) => new Map(item.nonfinite ?? []));
  const spelled = series.map((item, place) => ({
    x: item.x,
    y: item.y.map((value, at) => value ?? (words[place].get(at) as unknown as number) ?? null),
  }));
  const table = join(spelled);
  const rows = [[axis, ...titles].map(cell).join(",")];
  for (let at = 0; at < table.x.length; at++) {
    rows.push([String(table.x[at]), ...table.columns.map((column) => cell(column[at] ?? ""))].join(","));
  }
  return rows.join("\n") + "\n";
}

export function cell(value: unknown): string {
  let text = String(value ?? "");
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text) && text !== "-Infinity") text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function fileName(text: string, ending: string): string {
  return `${text.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "chart"}.${ending}`;
}

// Names of metrics: groups by prefix, search, and the lines' titles.
import type { Labels, Metric, Panel, Series } from "../data/types.ts";
import { toExpression } from "./search.ts";

export interface Group {
  name: string;
  metrics: string[];
}

// block_2 before block_10.
export const inOrder = new Intl.Collator("en", { numeric: true }).compare;

// "val/loss" belongs to "val", "block_3/norm" with the other blocks to "block_*"; a name without a slash to the first
// group. Layers have a separate chart.
export function groupByPrefix(names: string[], skip: ReadonlySet<string> = new Set()): Group[] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const slash = name.indexOf("/");
    const prefix = slash > 0 ? name.slice(0, slash) : "";
    if (skip.has(prefix)) continue;
    const group = prefix.replace(/\d+/g, "*");
    const found = groups.get(group);
    if (found) found.push(name);
    else groups.set(group, [name]);
  }
  return [...groups]
    .sort(([a], [b]) => rankOf(a) - rankOf(b) || a.localeCompare(b))
    .map(([name, metrics]) => ({ name, metrics }));
}

// What everybody looks for first, then the others, and at the end those of which a model has one per layer.
function rankOf(prefix: string): number {
  if (prefix === "") return 0;
  if (/^train/i.test(prefix)) return 1;
  if (/^(val|eval|test)/i.test(prefix)) return 2;
  return /\*|layer|block|grad|weight|param/i.test(prefix) ? 4 : 3;
}

// Every word must occur, as it is or as a regular expression; /text/ is one expression, with its spaces.
export function search(names: string[], text: string): string[] {
  const wanted = text.trim();
  if (!wanted) return names;
  const pattern = /^\/(.+)\/$/.exec(wanted);
  const whole = pattern && toExpression(pattern[1]);
  if (whole) return names.filter((name) => whole.test(name.slice(0, 500)));
  const words = wanted.split(/\s+/).map((word) => ({ text: word.toLowerCase(), expression: toExpression(word) }));
  return names.filter((name) => {
    const low = name.toLowerCase();
    return words.every(({ text, expression }) => low.includes(text) || expression?.test(name.slice(0, 500)));
  });
}

// Under which of the logged names a metric goes, as find_spelling in catalog.py: its own, else the first alias that is
// there. `*` is any text, and some aliases count only beside another metric.
export function findSpelling(name: string, logged: ReadonlySet<string>, rows: ReadonlyMap<string, Metric>): string | undefined {
  if (logged.has(name)) return name;
  const row = rows.get(name);
  if (!row || (row.beside && findSpelling(row.beside, logged, rows) === undefined)) return undefined;
  for (const alias of row.aliases) {
    if (logged.has(alias)) return alias;
    if (!alias.includes("*")) continue;
    const pattern = new RegExp(`^${alias.split("*").map((part) => part.replace(/[.@/+?^${}()|[\]\\]/g, "\\$&")).join(".*")}$`, "s");
    const found = [...logged].filter((one) => pattern.test(one)).sort()[0];
    if (found !== undefined) return found;
  }
  return undefined;
}

// Which of the logged names a panel draws.
export function panelNames(panel: Panel, logged: ReadonlySet<string>, rows: ReadonlyMap<string, Metric>): string[] {
  return panel.metrics.flatMap((name) => findSpelling(name, logged, rows) ?? []);
}

// What distinguishes a line from its neighbours.
export function seriesTitle(series: Series, all: Series[], by: string[] = []): string {
  const several = new Set(all.map((item) => item.name)).size > 1;
  const parts: string[] = several ? [shortName(series.name)] : [];
  const hosts = new Set(all.map((item) => item.labels.host)).size > 1;
  const subject = subjectOf(series, by, hosts, all);
  if (subject) parts.push(subject);
  return parts.join(" ") || series.name;
}

// As Participant.title in journal/identity.py: "rank 3", "rollout 3".
export function participantTitle(role: unknown, rank: unknown): string {
  return `${role ?? "rank"} ${rank}`;
}

// As gpu_title in journal/identity.py: "GPU 3", or "GPU 3:1" for a slice of it.
export function gpuTitle(labels: Record<string, unknown>): string {
  return labels.gpu_index === undefined ? String(labels.gpu_uuid ?? "GPU").slice(0, 12) : `GPU ${gpuNumber(labels)}`;
}

// As gpu_number there.
export function gpuNumber(labels: Record<string, unknown>): string {
  const index = String(labels.gpu_index ?? "?");
  return labels.mig_index === undefined ? index : `${index}:${labels.mig_index}`;
}

const NOUNS: Record<string, string> = { gpu_index: "GPUs", rank: "ranks", host: "hosts" };

// "GPU 3", "rank 3", or "all 64 GPUs" for a band.
function subjectOf(series: Series, by: string[], hosts: boolean, all: Series[]): string {
  const labels: Labels = series.labels;
  if (series.members) return ["all", series.members, labels.role, NOUNS[by[0]]].filter(Boolean).join(" ");
  const parts: string[] = [];
  if (hosts && labels.host !== undefined) parts.push(String(labels.host));
  if (labels.gpu_index !== undefined) parts.push(gpuTitle(labels));
  const rank = series.rank ?? (by.includes("rank") ? labels.rank : undefined);
  const several = new Set(all.map((item) => participantTitle(item.labels.role, item.rank ?? item.labels.rank))).size > 1;
  if (rank !== null && rank !== undefined && several) parts.push(participantTitle(labels.role, rank));
  return parts.join(" ");
}

// By host, then by the numbers of the GPU and its slice: 2 before 10.
export function byDevice(a: { labels: Labels }, b: { labels: Labels }): number {
  const apart = (name: string) => Number(a.labels[name] ?? -1) - Number(b.labels[name] ?? -1);
  return String(a.labels.host ?? "").localeCompare(String(b.labels.host ?? "")) || apart("gpu_index") || apart("mig_index");
}

const SPELLED = new Map([["pcie", "PCIe"], ["nvlink", "NVLink"], ...["cpu", "gpu", "io", "iops", "rss", "pss", "ecc", "rx", "tx", "sm", "kl"].map((word) => [word, word.toUpperCase()] as const)]);

// As a legend has it, without the unit; a name in parts is the user's own. The same as `short_name` in catalog.py.
export function shortName(name: string): string {
  if (name.includes("/")) return name;
  const words = name.replace(/_(percent|time|mb_s|mb|watts|celsius|mhz|seconds|total|samples_per_sec)$/, "").split("_");
  return words.map((word) => SPELLED.get(word) ?? word).join(" ");
}

// As the title of its own chart; the same as `title_name` in catalog.py.
export function titleName(name: string): string {
  return shortName(name) + (name.endsWith("_time") ? " time" : "");
}

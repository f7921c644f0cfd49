// The fleet page: nodes by rack, how large a GPU is drawn, what a colour means and what is said of it.
import type { Capacity, Fleet, FleetAlert, FleetGpu, FleetNode, Holder } from "../data/types.ts";
import { formatCount, formatValue, NONE } from "./format.ts";

export interface Rack {
  name: string;
  nodes: FleetNode[];
}

// Nodes come by rack and name. Where nobody said where any of them stands, they are one group.
export function groupRacks(nodes: FleetNode[]): Rack[] {
  const found = new Map<string, FleetNode[]>();
  for (const node of nodes) found.set(node.rack, [...(found.get(node.rack) ?? []), node]);
  return [...found].map(([name, members]) => ({ name, nodes: members })).sort((a, b) => Number(!a.name) - Number(!b.name));
}

export type Size = "large" | "medium" | "small";

// All nodes fit on a screen or two, however many there are.
export function sizeOf(nodes: number): Size {
  return nodes <= 12 ? "large" : nodes <= 160 ? "medium" : "small";
}

export interface Measure {
  id: string;
  title: string;
  unit: string;
  // Over days it is a mean or a peak.
  over: string;
  low: number;
  high: number;
}

const MEASURES: Omit<Measure, "high">[] = [
  { id: "utilization_percent", title: "use", unit: "%", over: "mean", low: 0 },
  { id: "memory_percent", title: "memory", unit: "%", over: "peak", low: 0 },
  { id: "temperature_celsius", title: "temperature", unit: "°C", over: "peak", low: 25 },
  { id: "power_draw_watts", title: "power", unit: "W", over: "mean", low: 0 },
];
export const STATE = "state";

// From the lowest to the highest colour: percentages are what they are, of others the highest there is.
export function measureOf(fleet: Fleet, id: string): Measure | null {
  const found = MEASURES.find((item) => item.id === id);
  if (!found) return null;
  if (found.unit === "%") return { ...found, high: 100 };
  const at = fleet.metrics.indexOf(id);
  const most = fleet.nodes.reduce((top, node) => node.gpus.reduce((high, gpu) => Math.max(high, gpu.values[at] ?? 0), top), 0);
  const step = found.unit === "W" ? 50 : 5;
  return { ...found, high: Math.max(Math.ceil(most / step) * step, found.low + step) };
}

export function measureChoices(): [string, string][] {
  return [...MEASURES.map(({ id, title }) => [id, title] as [string, string]), [STATE, "state"]];
}

// [state, title, what it means], in the order in which they are counted.
export const STATES: [keyof Capacity, string, string][] = [
  ["busy", "busy", "held by a run and in use"],
  ["idle", "held, idle", "held by a run but idle"],
  ["other", "other use", "in use, but not by a run shown here"],
  ["free", "free", "not held, not in use"],
  ["down", "down", "lost, or its node does not answer"],
  ["unknown", "not measured", "no current information"],
];

export function stateTitle(state: string): string {
  return STATES.find(([id]) => id === state)?.[1] ?? state;
}

// "0-3, 6": as people write a list of GPUs.
export function formatGpus(indices: string[]): string {
  const parts: [string, string][] = [];
  for (const index of indices) {
    const last = parts[parts.length - 1];
    const follows = last && /^\d+$/.test(index) && /^\d+$/.test(last[1]) && Number(index) === Number(last[1]) + 1;
    if (follows) last[1] = index;
    else parts.push([index, index]);
  }
  return parts.map(([first, last]) => (first === last ? first : Number(last) === Number(first) + 1 ? `${first}, ${last}` : `${first}–${last}`)).join(", ");
}

export function formatGpu(gpu: FleetGpu, at: number, unit: string): string {
  if (gpu.problem) return gpu.problem;
  const value = gpu.values[at];
  return value === null || value === undefined ? NONE : formatValue(value, unit);
}

// One line about a GPU: where, what, whose.
export function describeGpu(fleet: Fleet, node: FleetNode, gpu: FleetGpu): string {
  const [use, memory, heat, power] = gpu.values;
  const numbers = [
    use !== null && `${formatValue(use, "%")} use`, memory !== null && `${formatValue(memory, "%")} memory`,
    heat !== null && formatValue(heat, "°C"), power !== null && formatValue(power, "W"),
  ].filter(Boolean);
  const whose = gpu.holders.map((place) => fleet.holders[place]).filter(Boolean).map((holder) => `${holder.name}${holder.user && ` (${holder.user})`}`);
  return [`${node.name} GPU ${gpu.index}: ${gpu.problem || stateTitle(gpu.state)}`, ...numbers, ...whose].join(" · ");
}

// For who cannot see the colours.
export function describeNode(node: FleetNode, measure: Measure | null, at: number): string {
  const known = node.gpus.map((gpu) => gpu.values[at]).filter((value): value is number => typeof value === "number");
  const down = node.gpus.filter((gpu) => gpu.state === "down").length;
  const mean = measure && known.length ? `, ${measure.title} ${formatValue(known.reduce((a, b) => a + b, 0) / known.length, measure.unit)}` : "";
  return `${node.name}: ${formatCount(node.gpus.length, "GPU")}${mean}${down ? `, ${down} down` : ""}${node.state === "up" ? "" : `, ${node.state}`}`;
}

export interface NodeAlerts {
  node: string;
  alerts: FleetAlert[];
}

// The gravest come first, and a node where its gravest is.
export function groupAlerts(alerts: FleetAlert[]): NodeAlerts[] {
  const found = new Map<string, FleetAlert[]>();
  for (const alert of alerts) found.set(alert.node, [...(found.get(alert.node) ?? []), alert]);
  return [...found].map(([node, members]) => ({ node, alerts: members }));
}

// By node.
export function searchHolders(holders: Holder[], text: string): Holder[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const sorted = [...holders].sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true }));
  return sorted.filter((holder) => {
    const all = [holder.node, holder.name, holder.project, holder.user, holder.job, ...holder.pids].join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

// Whether black letters have more contrast to this colour than white ones, as WCAG counts it.
export function isBright(color: [number, number, number]): boolean {
  const [red, green, blue] = color.map((part) => (part <= 10 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179;
}

// The day before the period begins, or the last day of the one after it; none beyond today.
export function movePeriod(first: string, last: string, back: boolean, today: string): string | undefined {
  const day = 86_400_000;
  const [begin, end] = [Date.parse(first), Date.parse(last)];
  const to = back ? begin - day : end + (end - begin + day);
  const text = new Date(to).toISOString().slice(0, 10);
  return text >= today ? undefined : text;
}

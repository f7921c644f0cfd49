// What the API says (see /api/v1/openapi.json). A report has the same inside the file.

export type Value = number | string | null; // "NaN", "Infinity" and "-Infinity" are values too
export type Labels = Record<string, string | number | boolean>;
export type Severity = "ok" | "info" | "warning" | "critical";

export interface About {
  version: string;
  root: string;
  allow_edit: boolean;
  runs: number;
}

export interface Threshold {
  severity: "warning" | "critical";
  value: number;
  below: boolean;
}

export interface Panel {
  id: string;
  title: string;
  group: string;
  table: string;
  metrics: string[];
  importance: number;
  chart: "line" | "stacked" | "states";
  by: string[];
  limit: string | null;
  low: number | null;
  high: number | null;
  log: boolean;
  log_first: boolean;
  smooth: boolean;
  unit: string;
  rate: boolean;
  thresholds: Threshold[];
}

export interface Metric {
  name: string;
  unit: string;
  help: string;
  kind: string;
  aliases: string[];
}

export interface Panels {
  groups: { id: string; title: string }[];
  panels: Panel[];
  scheduled: string[];
  metrics: Record<string, Metric[]>;
  thresholds: (Threshold & { table: string; metric: string })[];
}

export interface Row {
  key: string;
  id: string;
  name: string;
  project: string;
  status: string;
  live: boolean;
  cause: string | null;
  kind: string;
  started: string | null;
  ended: string | null;
  seconds: number | null;
  step: number | null;
  attempt: number;
  simulated: boolean;
  tags: string[];
  host: string;
  config: Record<string, unknown>;
  summary: Record<string, Value>;
  energy_joules: number | null;
}

export interface Runs {
  total: number;
  projects: string[];
  runs: Row[];
}

export interface MetricSummary {
  name: string;
  count: number;
  last: Value;
  last_step: number | null;
  low: Value;
  low_step: number | null;
  high: Value;
  high_step: number | null;
  nonfinite: number;
  better: "lower" | "higher" | null;
  unit: string;
  help: string;
}

export interface Alert {
  timestamp: string;
  state?: string;
  rule?: string;
  severity?: string;
  message?: string;
  advice?: string;
  when?: string;
  value?: Value;
  threshold?: Value;
  values?: Record<string, Value>;
  labels?: Labels;
  step?: number;
  since?: string;
  metric?: string;
  silenced?: boolean | string;
  acknowledged?: boolean | string;
  [more: string]: unknown;
}

export interface Event {
  timestamp: string;
  event?: string;
  severity?: string;
  message?: string;
  correlation_id?: string;
  step?: number;
  rank?: number;
  host?: string;
  data?: unknown;
  [more: string]: unknown;
}

export interface Rank {
  rank: string;
  host?: string;
  pid?: number;
  state?: string;
  alive?: boolean;
  step?: number;
  step_seconds?: number;
  last_log?: string;
  exit_code?: number;
  cause?: string;
}

export interface Run extends Row {
  health: { word: string; severity: Severity; reason: string; advice: string };
  progress: { step: number | null; total_steps: number | null; share: number | null; seconds_left: number | null };
  step_seconds: number | null;
  cost: { amount: number; currency: string; of: string } | null;
  gpu_seconds: number | null;
  metrics: MetricSummary[];
  tables: Record<string, { names: string[]; left_out: number; labels: Labels[] }>;
  layers: Record<string, number>;
  histograms: string[];
  ranks: Rank[];
  firing: Alert[];
  damage: { torn: number; foreign: number; files: number };
  details: Record<string, unknown>;
  stacks: string[];
  consoles: string[];
}

export interface Series {
  name: string;
  labels: Labels;
  rank: number | null;
  total: number;
  // How many of all are NaN or infinite; not known of a part of a thinned series.
  nonfinite_total?: number;
  x: number[];
  y: (number | null)[];
  // Index and spelling of what is drawn of them; in a band also where only some of its series are not finite.
  nonfinite?: [number, string][];
  members?: number;
  low?: (number | null)[];
  high?: (number | null)[];
}

export interface SeriesAnswer {
  axis: string;
  table: string;
  series: Series[];
}

export interface SeriesQuery {
  names: string[];
  table: string;
  x: string;
  start?: number;
  end?: number;
  points: number;
  rank?: number;
  band?: boolean;
  rate?: boolean;
  allAttempts?: boolean;
}

// A metric that is a word: when it became another.
export interface States {
  name: string;
  labels: Labels;
  rank: number | null;
  changes: [number, string][];
}

export interface Layers {
  measure: string;
  layers: string[];
  x: number[];
  values: (number | null)[][];
  left_out: number;
}

export interface Histogram {
  step: number;
  low: number;
  high: number;
  counts: number[];
  nonfinite: number;
}

export interface Events {
  total: number;
  events: Event[];
}

export interface Alerts {
  firing: Alert[];
  total: number;
  history: Alert[];
  deliveries: Alert[];
}

export interface Verdict {
  run: number;
  metric: string;
  word: "better" | "worse" | "same" | "different" | "uncertain";
  baseline: number | null;
  value: number | null;
  change: number | null;
  confidence: number | null;
  reason: string;
}

export interface Comparison {
  runs: Row[];
  config: { key: string; values: unknown[] }[];
  metrics: {
    name: string;
    unit: string;
    better: "lower" | "higher" | null;
    values: ({ last: Value; low: Value; high: Value } | null)[];
    best: number | null;
  }[];
  verdicts: Verdict[];
  axis: string;
  names: string[];
  series: (Series & { run: number; key: string })[];
}

export interface Finding {
  rule: string;
  severity: "info" | "warning" | "critical";
  title: string;
  evidence: string[];
  advice: string;
  subject: string;
  step: number | null;
  time: number | null;
  values: Record<string, Value>;
}

export interface Resource {
  subject: string;
  simulated: boolean;
  table: string;
  metric: string;
  unit: string;
  low: number;
  mean: number;
  median: number;
  p95: number;
  high: number;
}

export interface Diagnosis {
  findings: Finding[];
  fine: string[];
  not_judged: { rule: string; title: string; needs: string }[];
  resources: Resource[];
  from_step: number | null;
}

export interface TextFile {
  name: string;
  size: number;
  start: number;
  next: number;
  cut: boolean;
  text: string;
}

// One increment of one series, as the live stream has it.
export interface Increment {
  table: string;
  name: string;
  labels: Labels;
  rank: number | null;
  step?: (number | null)[];
  time: number[];
  y: (number | null)[];
  nonfinite?: [number, string][];
}

export interface State {
  status: string;
  live: boolean;
  cause: string | null;
  attempt?: number;
  ended?: string | null;
  now: number;
}

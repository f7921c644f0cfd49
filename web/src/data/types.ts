// Made from src/trainvitals/views/data/shapes.py by
// python -m trainvitals.views.web.typescript > web/src/data/types.ts

export interface About {
  version: string;
  root: string;
  allow_edit: boolean;
  runs: number;
}

// A line of alerts_*.jsonl; which fields it has depends on what it is about. `state`: an alert changed. `outgoing`: a
// message is to be sent. `delivery`: what became of it. `control`: somebody asked for something. `action`: an action
// was taken.
export interface AlertRow {
  timestamp: string;
  rule?: string;
  state?: string;
  severity?: string;
  labels?: Record<string, unknown>;
  message?: string;
  advice?: string;
  when?: string;
  value?: number | string;
  threshold?: number | string;
  values?: Record<string, unknown>;
  step?: number;
  since?: string;
  reason?: string;
  metric?: string;
  host?: string;
  cooldown?: number;
  silenced?: boolean | string;
  acknowledged?: boolean | string;
  outgoing?: string;
  kind?: string;
  channels?: string[];
  body?: Record<string, unknown>;
  quiet?: boolean;
  delivery?: string;
  channel?: string;
  result?: string;
  attempts?: number;
  late_seconds?: number;
  control?: string;
  by?: string;
  until?: string;
  asked?: string;
  action?: string;
  pids?: number[];
  [more: string]: unknown;
}

export interface Alerts {
  firing: AlertRow[];
  total: number;
  history: AlertRow[];
  deliveries: AlertRow[];
}

export interface Asked {
  asked: AlertRow;
}

// Which step was when, so that what is known by step can be drawn over time.
export interface Clock {
  step: number[];
  time: number[];
}

export interface ComparedMetric {
  unit: string;
  help: string;
  name: string;
  better: "lower" | "higher" | null;
  values: (ComparedValue | null)[];
  // Which run has the best value
  best: number | null;
}

export interface ComparedSeries {
  y: (number | null)[];
  // Index and spelling of the values that are not finite
  nonfinite?: [number, string][];
  name: string;
  labels: Labels;
  rank: number | null;
  total: number;
  nonfinite_total?: number;
  x: number[];
  members?: number;
  low?: (number | null)[];
  high?: (number | null)[];
  run: number;
  key: string;
}

export interface ComparedValue {
  last: Value;
  low: Value;
  high: Value;
}

export interface Comparison {
  runs: Row[];
  config: Difference[];
  metrics: ComparedMetric[];
  verdicts: (OfRun & Verdict)[];
  axis: string;
  names: string[];
  series: ComparedSeries[];
}

export interface Cost {
  amount: number;
  currency: string;
  of: string;
}

// What could not be understood, counted and shown rather than dropped silently.
export interface Damage {
  torn: number;
  foreign: number;
  files: number;
}

export interface Diagnosis {
  findings: Finding[];
  fine: string[];
  not_judged: Gap[];
  resources: Resource[];
  from_step: number | null;
}

export interface Difference {
  key: string;
  values: unknown[];
}

export interface Edited {
  tags: string[];
  notes: string;
}

export interface Error {
  error: ErrorDetail;
}

export interface ErrorDetail {
  message: string;
  hint: string;
}

// Something happened.
export interface EventRow {
  timestamp: string;
  event?: string;
  severity: string;
  message?: string;
  correlation_id?: string;
  host?: string;
  role?: string;
  rank?: number;
  step?: number;
  data?: Record<string, unknown>;
  [more: string]: unknown;
}

export interface Events {
  total: number;
  events: EventRow[];
}

// One thing that was found. `step` or `time` (seconds since 1970) is where it began, if known.
export interface Finding {
  rule: string;
  severity: "info" | "warning" | "critical";
  title: string;
  evidence: string[];
  advice: string;
  subject: string;
  step: number | null;
  time: number | null;
  named_at: number | null;
  until: number | null;
  cause: string | null;
  values: Record<string, number | string>;
}

// Something that was not judged.
export interface Gap {
  rule: string;
  title: string;
  needs: string;
}

export interface Group {
  id: string;
  title: string;
}

// `reason` and `advice` are empty where all is well.
export interface Health {
  word: string;
  severity: "ok" | "info" | "warning" | "critical";
  reason: string;
  advice: string;
}

export interface Histogram {
  step: number;
  low: number;
  high: number;
  counts: number[];
  nonfinite: number;
}

export interface Histograms {
  name: string;
  histograms: Histogram[];
}

// What is new in one series.
export interface Increment {
  y: (number | null)[];
  // Index and spelling of the values that are not finite
  nonfinite?: [number, string][];
  table: string;
  name: string;
  labels: Labels;
  rank: number | null;
  step?: (number | null)[];
  time: number[];
}

export type Labels = Record<string, string | number | boolean>;

// The newest values of one thing that is measured.
export interface LatestSample {
  source?: string;
  table?: string;
  time?: string;
  age?: number;
  labels?: Record<string, unknown>;
  values?: Record<string, unknown>;
  [more: string]: unknown;
}

// `values[layer][column]`, null where nothing was measured.
export interface Layers {
  measure: string;
  layers: string[];
  x: number[];
  values: (number | null)[][];
  left_out: number;
}

// A value from which a number is coloured.
export interface Level {
  severity: "warning" | "critical";
  value: number;
  below: boolean;
}

export interface LeveledMetric {
  table: string;
  metric: string;
}

export interface Machine {
  written: string | null;
  samples: LatestSample[];
}

// One column of one table.
export interface Metric {
  name: string;
  unit: string;
  help: string;
  kind: "gauge" | "counter" | "text";
  aliases: string[];
}

// One metric, over everything that was logged. `low` and `high` look at finite values only.
export interface MetricSummary {
  count: number;
  last: number | string;
  last_step: number | null;
  low: number | null;
  low_step: number | null;
  high: number | null;
  high_step: number | null;
  nonfinite: number;
}

export interface NamedMetric {
  unit: string;
  help: string;
  name: string;
  better: "lower" | "higher" | null;
}

export interface OfRun {
  // Which of the compared runs it is about
  run: number;
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
  thresholds: Level[];
}

export interface Panels {
  groups: Group[];
  panels: Panel[];
  scheduled: string[];
  metrics: Record<string, Metric[]>;
  thresholds: (LeveledMetric & Level)[];
}

export interface Points {
  series: Increment[];
  // Tables of which some series were left out
  more: string[];
}

// `share` is between 0 and 1; what is not known is None.
export interface Progress {
  step: number | null;
  total_steps: number | null;
  share: number | null;
  seconds_left: number | null;
}

export interface Rank {
  role?: string;
  rank: string;
  host: string;
  pid?: number;
  state?: string;
  alive?: boolean;
  step?: number;
  step_seconds?: number;
  last_log?: string;
  lines?: number;
  exit_code?: number;
  cause?: string;
}

export interface Removed {
  removed: string;
}

// What an HTML report holds: the answers of the API, put into the file.
export interface ReportData {
  about: About;
  panels: Panels;
  runs: Record<string, ReportRun>;
  comparison?: Comparison;
  written: string;
}

export interface ReportRun {
  run: Run;
  // By table, then by axis (`step`, `time`)
  series: Record<string, Record<string, Series[]>>;
  layers: Record<string, Layers>;
  states: States[];
  histograms: Record<string, Histogram[]>;
  clock: Clock | null;
  events: Events;
  alerts: Alerts;
  diagnosis: Diagnosis;
  texts: Record<string, TextPart>;
}

// A report for programs: everything but the series.
export interface ReportSummary {
  written: string;
  version: string;
  runs: Record<string, unknown>[];
  comparison?: Record<string, unknown>;
}

// What one device did over the whole run.
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

// A run on one line of the table of runs.
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

// Everything about a run but its series.
export interface Run {
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
  health: Health;
  progress: Progress;
  step_seconds: number | null;
  cost: Cost | null;
  gpu_seconds: number | null;
  metrics: (NamedMetric & MetricSummary)[];
  tables: Record<string, Table>;
  layers: Record<string, number>;
  histograms: string[];
  ranks: Rank[];
  firing: AlertRow[];
  damage: Damage;
  details: Record<string, unknown>;
  stacks: string[];
  consoles: string[];
}

export interface Runs {
  total: number;
  projects: string[];
  runs: Row[];
}

// `y` is null where a value is not finite. `total` and `nonfinite_total` count before downsampling. A band also has
// `low`, `high` and `members`, and in `nonfinite` the places where only some of its series are not finite.
export interface Series {
  y: (number | null)[];
  // Index and spelling of the values that are not finite
  nonfinite?: [number, string][];
  name: string;
  labels: Labels;
  rank: number | null;
  total: number;
  nonfinite_total?: number;
  x: number[];
  members?: number;
  low?: (number | null)[];
  high?: (number | null)[];
}

export interface SeriesAnswer {
  axis: string;
  table: string;
  series: Series[];
}

export interface State {
  status: string;
  live: boolean;
  cause: string | null;
  attempt?: number;
  ended?: string | null;
  // Bytes by file
  consoles?: Record<string, number>;
  now: number;
}

// A metric that is a word: when it became another.
export interface States {
  name: string;
  labels: Labels;
  rank: number | null;
  gpu: number | null;
  left_out: number;
  changes: [number, string][];
}

export interface StatesAnswer {
  table: string;
  states: States[];
}

export interface Table {
  names: string[];
  left_out: number;
  labels: Labels[];
}

// The end of a text, as a terminal would show it.
export interface TextPart {
  name: string;
  size: number;
  start: number;
  next: number;
  cut: boolean;
  text: string;
}

export type Value = number | string | null;

// What came of comparing one metric of one run with the same of the baseline.
export interface Verdict {
  metric: string;
  word: "better" | "worse" | "same" | "different" | "uncertain";
  baseline: number | null;
  value: number | null;
  change: number | null;
  confidence: number | null;
  reason: string;
}

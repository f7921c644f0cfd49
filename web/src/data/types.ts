// Made from src/trainvitals/views/data/shapes.py by
// python -m trainvitals.views.web.typescript > web/src/data/types.ts

export interface About {
  version: string;
  root: string;
  allow_edit: boolean;
  runs: number;
  // Whose runs these are; empty: of this one alone
  machines: string[];
}

// How far the answers are from those of the reference, for the same inputs.
export interface Agreement {
  max_error?: number;
  relative_error?: number;
  cosine?: number;
  kl?: number;
  top1?: number;
  metric?: number;
  within?: boolean;
  [more: string]: unknown;
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

// One start of a run.
export interface Attempt {
  number: number | null;
  status: string;
  started: string | null;
  seconds: number | null;
  // The first step that it logged
  first_step: number | null;
  host: string;
  cause: string | null;
}

// One measurement of one model.
export interface Benchmark {
  format?: number;
  started?: string;
  seconds?: number;
  model?: string;
  inputs?: string;
  device: string;
  step?: number;
  machine?: Record<string, unknown>;
  results?: MeasuredVariant[];
  largest_batch?: Record<string, number>;
  peaks?: Peak[];
  checks?: string[];
  sensitivity?: number;
  warnings?: string[];
  [more: string]: unknown;
}

// One variant with one batch size, as a line of the table.
export interface BenchmarkRow {
  name: string;
  // One per title; empty where it has no figures, and `text` has the reason
  cells: string[];
  // The verdict, or why there are no figures
  text: string;
  distribution: Distribution | null;
}

// Oldest first; every call that was timed is in the run folder.
export interface Benchmarks {
  benchmarks: ShownBenchmark[];
}

// Nodes, and GPUs by state.
export interface Capacity {
  nodes: number;
  nodes_down: number;
  gpus: number;
  busy: number;
  idle: number;
  other: number;
  free: number;
  down: number;
  unknown: number;
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
  // Which run has the best value, of those whose last one is finite
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
  others: DifferenceGroup[];
  // Runs that differ in nothing but their seed; a verdict is about all of them
  seeds: number[][];
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
  // The list prices it is made from; empty where the user set one
  basis: string;
  per_epoch: number | null;
  to_finish: number | null;
  // What lowering the loss by 1 % of itself cost late in the run
  per_loss_percent: number | null;
}

// How many there are of each severity.
export interface Counts {
  critical: number;
  warning: number;
  info: number;
}

// Of a run; or of a group, with the mean in `y`, the band in `low` and `high`, and in `members` its runs that have the
// metric.
export interface Curve {
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
  // Which of the lines
  line: number;
  counts?: number[];
}

export interface Curves {
  // Runs that the search finds
  total: number;
  // Oldest of these whose curves were not read
  left_out: number;
  axis: string;
  // What the runs were grouped by; empty if each is a line
  group: string;
  names: string[];
  lines: Line[];
  series: Curve[];
}

// What could not be understood, counted and shown rather than dropped silently.
export interface Damage {
  torn: number;
  foreign: number;
  files: number;
}

export interface Death {
  key: string;
  name: string;
  time: number;
  cause: string;
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

// What differs of one kind besides the configuration.
export interface DifferenceGroup {
  // `code`, `command`, `package`, `environment` or `machine`
  title: string;
  rows: Difference[];
}

// Which share of the calls took how long.
export interface Distribution {
  // The middle of each bin
  ms: number[];
  percent: number[];
}

export interface Edited {
  name: string;
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

// Alerts of one rule on one node.
export interface Fault {
  rule: string;
  title: string;
  severity: string;
  // On how many days it fired
  days: number;
  times: number;
  gpus: string[];
  last: number;
  // Of the last one
  message: string;
  // The run that it fired in
  key: string;
  name: string;
}

export interface FaultyNode {
  name: string;
  rack: string;
  // For each day with an alert 5 (critical), 2 (warning) or 1, for each death 5
  points: number;
  last: number;
  faults: Fault[];
  // Runs that died there of something other than their program, a person or a scheduler
  deaths: number;
  // The newest of these
  died: Death[];
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
  about: string[];
}

export interface Fleet {
  now: number;
  window: string;
  // What `values` of a GPU are; over days: mean use, peak memory, peak heat, mean power
  metrics: string[];
  // By rack and name
  nodes: FleetNode[];
  left_out: number;
  // Not among the nodes, nor in the capacity; the last one heard of comes first
  idle: IdleNode[];
  holders: Holder[];
  // The gravest first
  alerts: FleetAlert[];
  alerts_total: number;
  capacity: Capacity;
  // Whether any of the GPUs does not exist
  simulated: boolean;
}

// An alert that fires now.
export interface FleetAlert {
  node: string;
  key: string;
  // Of the run
  name: string;
  rule: string;
  severity: string;
  // Of how many GPUs, ranks or layers
  count: number;
  since: string | null;
  message: string;
  acknowledged: boolean;
  silenced: boolean;
}

export interface FleetFaults {
  days: number;
  since: number;
  // The worst first
  nodes: FaultyNode[];
  left_out: number;
  // Nodes on which nothing happened
  without: number;
  simulated: boolean;
}

export interface FleetGpu {
  index: string;
  // One per metric of the answer
  values: (number | null)[];
  // `busy`; `idle`: held and not used; `other`: used, but by no run that is known here; `free`; `down`; `unknown`
  state: string;
  // Which of the holders
  holders: number[];
  problem: string;
}

export interface FleetNode {
  name: string;
  // Empty if nobody said where it stands
  rack: string;
  // `up`; `quiet`: no run there now; `silent`: a run, but no word from its agent; or as a machine of `--host`
  state: string;
  detail: string;
  // When it was last heard of, in seconds since 1970
  seen: number | null;
  // Of its GPUs
  model: string;
  simulated: boolean;
  gpus: FleetGpu[];
}

export interface FleetUse {
  period: string;
  by: "user" | "project" | "run" | "node";
  // Day (UTC)
  first: string;
  last: string;
  rows: UseRow[];
  left_out: number;
  total: UseRow;
  // Runs that held GPUs and have no figures by day, such as those of earlier versions
  unmeasured: number;
  simulated: boolean;
}

// Something that was not judged.
export interface Gap {
  rule: string;
  title: string;
  needs: string;
}

// A model that makes one token after the other; milliseconds, medians over the calls.
export interface Generation {
  prompt?: number;
  generated?: number;
  first_token?: number;
  per_token?: number;
  prefill_tokens_per_second?: number;
  decode_tokens_per_second?: number;
  [more: string]: unknown;
}

export interface GpuNow {
  index: string;
  name: string;
  // By the names of the catalog's `gpu` table; those that are known
  values: Record<string, number>;
  // Why there is no new sample, or its state; empty if it is well
  problem: string;
  simulated: boolean;
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

// A live run on one node, and its GPUs there.
export interface Holder {
  node: string;
  // Their indices
  gpus: string[];
  key: string;
  name: string;
  project: string;
  // Empty if it was not recorded
  user: string;
  // What a scheduler knows it as; empty without one
  job: string;
  pids: number[];
  started: string | null;
  status: string;
}

// A node without a run for more than a week. Whether it is still there is not known.
export interface IdleNode {
  name: string;
  // Empty if nobody said where it stands
  rack: string;
  // Of its GPUs
  model: string;
  // How many it had
  gpus: number;
  // When its agent last reported, in seconds since 1970
  seen: number | null;
  simulated: boolean;
}

// What one parameter explains. `share`, `low` and `high` are None where `reason` says why it is not known.
export interface Importance {
  key: string;
  runs: number;
  share: number | null;
  low: number | null;
  high: number | null;
  direction: number | null;
  reason: string;
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

// Two parameters that explain more together than the sum of each alone: the best of one depends on the other.
export interface Interaction {
  first: string;
  second: string;
  share: number;
}

export type Labels = Record<string, string | number | boolean>;

// Milliseconds of one call.
export interface Latency {
  calls: number;
  median?: number;
  low?: number;
  high?: number;
  p90?: number;
  p95?: number;
  p99?: number;
  lowest?: number;
  mean?: number;
  jitter?: number;
  outliers: number;
  drift?: number;
  first?: number;
  warm_up: number;
  steady?: boolean;
  cpu_share?: number;
  [more: string]: unknown;
}

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

// A run, or a group of runs, as one line of every chart.
export interface Line {
  // The same one when other runs come and go
  id: string;
  title: string;
  // Keys of its runs
  runs: string[];
}

export interface Machine {
  written: string | null;
  samples: LatestSample[];
}

// One of the machines of `--host`, as it answered last.
export interface MachineNow {
  // The keys of its runs begin with it and a colon
  name: string;
  // `up`, `connecting`, `slow`, `down` or `incompatible`
  state: string;
  // Why it is not up
  detail: string;
  // What to do about that
  hint: string;
  version: string;
  // What it calls itself
  host: string;
  // Where it keeps its runs
  place: string;
  // When it answered last, in seconds since 1970
  heard: number | null;
  // `agent`, `own sampling`, or empty if nothing is measured there
  origin: string;
  // Seconds since the numbers were written, when it answered last
  age: number | null;
  // Whether the numbers are those of now
  current: boolean;
  gpus: GpuNow[];
  // Of the host, by the names of the catalog's `system` table
  values: Record<string, number>;
  // Mean of the GPUs
  utilization_percent: number | null;
  // Of all GPUs together
  memory_used_mb: number | null;
  memory_total_mb: number | null;
  power_draw_watts: number | null;
  // Null until it has answered, as the next two
  runs: number | null;
  // Runs that have not ended
  live: number | null;
  // Alerts of these that fire
  firing: number | null;
}

export interface Machines {
  // Empty without `--host`
  machines: MachineNow[];
  now: number;
}

// One variant with one batch size and number of threads.
export interface MeasuredVariant {
  variant?: string;
  batch: number;
  threads?: number;
  state: string;
  reason?: string;
  reference?: boolean;
  latency?: Latency;
  items_per_second?: number;
  ratio?: number;
  ratio_low?: number;
  ratio_high?: number;
  verdict?: string;
  memory?: ModelMemory;
  disk_mb?: number;
  parameters?: number;
  bytes_by_dtype?: Record<string, number>;
  flops?: number;
  bytes_moved?: number;
  load_seconds?: number;
  convert_seconds?: number;
  compile_seconds?: number;
  agreement?: Agreement;
  generation?: Generation;
  joules_per_item?: number;
  rounds?: number[][];
  processes?: number[];
  [more: string]: unknown;
}

export interface Media {
  groups: MediaGroup[];
  // Items that a report has no room for
  left_out: number;
}

// All of one name, in the order in which they were logged; those of a histogram have their own endpoint.
export interface MediaGroup {
  kind: "image" | "table" | "text" | "histogram";
  name: string;
  items: MediaItem[];
}

export interface MediaItem {
  step: number | null;
  // Seconds since 1970
  time: number | null;
  // Identifies it within the run
  file: string;
  caption: string;
  // Which participant logged it, where that is not rank 0
  owner: string;
}

export interface MediaTable {
  columns: string[];
  rows: unknown[][];
  // Rows that were logged; the first 10,000 are kept
  total: number;
}

export interface MediaText {
  text: string;
  cut: boolean;
}

// One column of one table.
export interface Metric {
  name: string;
  unit: string;
  help: string;
  kind: "gauge" | "counter" | "text";
  aliases: string[];
  beside: string;
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

// MB. Of a process, above what it held before the model was loaded: the libraries are not the model's.
export interface ModelMemory {
  weights?: number;
  load_peak?: number;
  peak?: number;
  private?: number;
  device_allocated?: number;
  device_reserved?: number;
  [more: string]: unknown;
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

export interface OwnPanel {
  id: string;
  title: string;
  items: string[];
  x: string;
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
  // Patterns: in a list of runs the metric that matches the first comes first
  key_metrics: string[];
  metrics: Record<string, Metric[]>;
  thresholds: (LeveledMetric & Level)[];
}

// What was changed in the repository of a run since its commit, when its newest attempt began.
export interface Patch {
  attempt: number;
  // Else `title` has the reason
  kept: boolean;
  // How large it is, in words
  title: string;
  // Why it may not apply; empty if it does
  warning: string;
  commit: string;
  bytes: number;
  // Names of files that git did not know; their contents are not kept
  untracked: string[];
  // There were more
  untracked_cut: boolean;
}

export interface PatchText {
  text: string;
  // It is only the beginning
  cut: boolean;
}

// The most that this machine does with so many threads, measured: what a model is held against.
export interface Peak {
  threads?: number;
  flops_per_second?: number;
  bytes_per_second?: number;
  [more: string]: unknown;
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

// A range of x. Both are null where the run has no such x, or nothing of it in there.
export interface Range {
  start: number | null;
  end: number | null;
}

export interface Rank {
  role?: string;
  rank: string;
  host: string;
  pid?: number;
  state?: string;
  alive?: boolean;
  step?: number;
  // What it is doing within its step, where the framework reports that
  phase?: string;
  phase_since?: string;
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
  // By project, where somebody has changed how it is shown
  views: Record<string, View>;
  comparison?: Comparison;
  written: string;
}

// The newest of each name, with its content by file.
export interface ReportMedia {
  groups: MediaGroup[];
  // Items that a report has no room for
  left_out: number;
  // As addresses that hold the image (`data:`)
  images: Record<string, string>;
  tables: Record<string, MediaTable>;
  texts: Record<string, MediaText>;
}

// What a custom panel draws of a run. Curves of expressions are among the series, under their texts.
export interface ReportPanel {
  items: string[];
  names: string[];
  problems: string[];
}

export interface ReportRun {
  run: Run;
  own_panels: ReportPanel[];
  // By table, then by axis (`step`, `time`)
  series: Record<string, Record<string, Series[]>>;
  layers: Record<string, Layers>;
  states: States[];
  histograms: Record<string, Histogram[]>;
  clock: Clock | null;
  events: Events;
  alerts: Alerts;
  diagnosis: Diagnosis;
  benchmarks: Benchmarks;
  texts: Record<string, TextPart>;
  patch: PatchText | null;
  media: ReportMedia;
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
  // What a scheduler knows it as: `slurm`, `array`, `pod`, `labels.team` ...
  job: Record<string, unknown>;
  config: Record<string, unknown>;
  summary: Record<string, Value>;
  energy_joules: number | null;
  health: Health;
  problems: string;
  alert_counts: Counts;
  finding_counts: Counts | null;
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
  // What a scheduler knows it as: `slurm`, `array`, `pod`, `labels.team` ...
  job: Record<string, unknown>;
  config: Record<string, unknown>;
  summary: Record<string, Value>;
  energy_joules: number | null;
  health: Health;
  problems: string;
  alert_counts: Counts;
  finding_counts: Counts | null;
  progress: Progress;
  step_seconds: number | null;
  cost: Cost | null;
  co2_kg: number | null;
  gpu_seconds: number | null;
  metrics: (NamedMetric & MetricSummary)[];
  tables: Record<string, Table>;
  layers: Record<string, number>;
  histograms: string[];
  ranks: Rank[];
  attempts: Attempt[];
  firing: AlertRow[];
  damage: Damage;
  details: Record<string, unknown>;
  // The same for people: titles and texts
  job_facts: [string, string][];
  stacks: string[];
  consoles: string[];
  patch: Patch | null;
  // How many times its model was measured
  benchmarks: number;
}

export interface Runs {
  // How many runs match, also those beyond `limit`
  total: number;
  projects: string[];
  runs: Row[];
  // To be sent as `since` to get only what changed
  version: string;
  // Since when `runs` are those that changed; null: `runs` are all
  since: string | null;
  // With `since`, the keys of all runs if they are not the same as then
  order: string[] | null;
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
  problems?: string[];
}

export interface ShownBenchmark {
  document: Benchmark;
  titles: string[];
  rows: BenchmarkRow[];
  remarks: string[];
  warnings: string[];
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

export interface Stopping {
  stopping: string;
}

// What each run came to in one metric, and which parameter explains it.
export interface Sweep {
  unit: string;
  help: string;
  name: string;
  better: "lower" | "higher" | null;
  take: string;
  // Metrics of these runs, the most common first
  names: string[];
  // Keys, the newest first
  runs: string[];
  // One per run
  values: Value[];
  // Key of the run with the best value
  best: string | null;
  importances: Importance[];
  interactions: Interaction[];
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

// What somebody used of the GPUs they held. What was not measured is null.
export interface UseRow {
  title: string;
  // Of a run
  key: string;
  runs: number;
  gpus: number;
  gpu_seconds: number;
  // Mean
  use_percent: number | null;
  idle_seconds: number | null;
  joules: number | null;
  idle_joules: number | null;
  co2_kg: number | null;
  // Null unless all of it has a price in one currency
  cost: number | null;
  idle_cost: number | null;
  currency: string;
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

// Charts go by their titles.
export interface View {
  project: string;
  panels: OwnPanel[];
  pins: string[];
  log: string[];
  linear: string[];
  hide: string[];
  columns: string[] | null;
  is_kept: boolean;
  problem: string;
}

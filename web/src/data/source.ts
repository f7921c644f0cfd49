import type {
  About, Alerts, Benchmarks, Comparison, Curves, Diagnosis, Edited, Events, Fleet, FleetFaults, FleetUse, Histogram, Increment, Layers, Machines, Media, MediaTable, MediaText, Panels, PatchText, Range, Run, Runs, SeriesAnswer,
  State, States, Sweep, TextPart, View,
} from "./types.ts";

export interface Listener {
  points(series: Increment[], more: string[]): void;
  event(): void;
  alert(): void;
  state(state: State): void;
  reset(): void;
  connection(up: boolean): void;
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
  // Names, patterns and expressions of a panel of the user.
  chosen?: string[];
}

export interface ComparisonQuery {
  runs: string[];
  names: string[];
  x: string;
  start?: number;
  end?: number;
  points: number;
}

// What is to change in a run; what is missing stays.
export interface Edit {
  name?: string;
  notes?: string;
  tags?: string[];
  add_tags?: string[];
  remove_tags?: string[];
}

export interface CurvesQuery {
  q?: string;
  machine?: string;
  project?: string;
  status?: string;
  names: string[];
  x: string;
  start?: number;
  end?: number;
  points: number;
  group?: string;
  band?: string;
}

export interface SweepQuery {
  q?: string;
  machine?: string;
  project?: string;
  status?: string;
  name?: string;
  take: string;
}

export interface UseQuery {
  period: string;
  by: string;
  // The last day; today if there is none.
  until?: string;
}

// A document and what it was marked with when it was read.
export interface Tagged<T> {
  found: T;
  tag: string;
}

// Where the page gets its data: a server, or the file itself (a report).
export interface Source {
  readonly isLive: boolean;
  // Until when its data goes, in ms; null: until now.
  readonly asOf: number | null;
  about(): Promise<About>;
  panels(): Promise<Panels>;
  runs(): Promise<Runs>;
  machines(): Promise<Machines>;
  fleet(window: string): Promise<Fleet>;
  fleetUse(query: UseQuery): Promise<FleetUse>;
  fleetFaults(days: number): Promise<FleetFaults>;
  run(key: string): Promise<Run>;
  series(run: string, query: SeriesQuery): Promise<SeriesAnswer>;
  range(run: string, x: string, start: number, end: number, to: string): Promise<Range>;
  states(run: string, table: string, names: string[]): Promise<States[]>;
  layers(run: string, measure: string, points: number): Promise<Layers>;
  histograms(run: string, name: string): Promise<Histogram[]>;
  media(run: string): Promise<Media>;
  imageAddress(run: string, file: string): string;
  mediaTable(run: string, file: string): Promise<MediaTable>;
  mediaText(run: string, file: string): Promise<MediaText>;
  events(run: string): Promise<Events>;
  alerts(run: string): Promise<Alerts>;
  diagnosis(run: string): Promise<Diagnosis>;
  benchmarks(run: string): Promise<Benchmarks>;
  text(run: string, kind: "stacks" | "console", file: string, after?: number): Promise<TextPart>;
  patch(run: string): Promise<PatchText>;
  compare(query: ComparisonQuery): Promise<Comparison>;
  curves(query: CurvesQuery): Promise<Curves>;
  sweep(query: SweepQuery): Promise<Sweep>;
  reportAddress(run: string, format: string): string | null;
  exportAddress(run: string, format: string, table: string): string | null;
  remove(run: string): Promise<void>;
  edit(run: string, changes: Edit): Promise<Edited>;
  stop(run: string): Promise<void>;
  view(project: string): Promise<Tagged<View>>;
  // Refused with 412 if somebody else has changed it since it was read.
  saveView(view: View, tag: string): Promise<Tagged<View>>;
  controlAlert(run: string, action: "ack" | "silence", rule: string, seconds: number): Promise<void>;
  follow(run: string, listener: Listener): () => void;
}

// An error as the server reported it.
export class SourceError extends Error {
  status: number;
  hint: string;
  constructor(status: number, message: string, hint = "") {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

import { SourceError, type ComparisonQuery, type Listener, type SeriesQuery, type Source, type Tagged } from "./source.ts";
import type {
  About, Alerts, Benchmarks, Comparison, Curves, Diagnosis, Events, Fleet, FleetFaults, FleetUse, Histogram, Layers, Machines, Media, MediaTable, MediaText, Panels, PatchText, Range, ReportData, ReportRun, Run, Runs, Series, SeriesAnswer, States, Sweep, TextPart, View,
} from "./types.ts";
import { emptyView } from "../logic/own_panels.ts";

export async function readInline(element: HTMLElement): Promise<ReportData> {
  const text = (element.textContent ?? "").trim();
  if (element.dataset.encoding !== "gzip") return JSON.parse(text) as ReportData;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as ReportData;
}

export class InlineSource implements Source {
  readonly isLive = false;
  readonly asOf: number;
  #data: ReportData;
  constructor(data: ReportData) {
    this.#data = data;
    this.asOf = Date.parse(data.written);
  }

  async about(): Promise<About> {
    return { ...this.#data.about, allow_edit: false };
  }
  async panels(): Promise<Panels> {
    return this.#data.panels;
  }
  async runs(): Promise<Runs> {
    const runs = Object.values(this.#data.runs).map((item) => item.run);
    return { total: runs.length, projects: [...new Set(runs.map((run) => run.project))], runs, version: "", since: null, order: null };
  }
  async machines(): Promise<Machines> {
    return { machines: [], now: this.asOf / 1000 };
  }
  async fleet(): Promise<Fleet> {
    throw new SourceError(404, "a report has no fleet");
  }
  async fleetUse(): Promise<FleetUse> {
    throw new SourceError(404, "a report has no fleet");
  }
  async fleetFaults(): Promise<FleetFaults> {
    throw new SourceError(404, "a report has no fleet");
  }
  async run(key: string): Promise<Run> {
    return this.#find(key).run;
  }
  async series(key: string, query: SeriesQuery): Promise<SeriesAnswer> {
    const item = this.#find(key);
    const panel = query.chosen && item.own_panels.find((own) => own.items.join("\n") === query.chosen!.join("\n"));
    const names = panel ? panel.names : query.names;
    return { axis: query.x, table: query.table, series: selectSeries(item, { ...query, names }), problems: panel?.problems };
  }
  async range(key: string, x: string, start: number, end: number, to: string): Promise<Range> {
    const item = this.#find(key);
    return moveRange(item, { start, end }, x, to);
  }
  async states(key: string, _table: string, names: string[]): Promise<States[]> {
    return (this.#find(key).states ?? []).filter((item) => names.includes(item.name));
  }
  async layers(key: string, measure: string): Promise<Layers> {
    return this.#find(key).layers?.[measure] ?? { measure, layers: [], x: [], values: [], left_out: 0 };
  }
  async histograms(key: string, name: string): Promise<Histogram[]> {
    return this.#find(key).histograms?.[name] ?? [];
  }
  async media(key: string): Promise<Media> {
    return this.#find(key).media ?? { groups: [], left_out: 0 };
  }
  imageAddress(key: string, file: string): string {
    return pick(this.#find(key).media?.images, file);
  }
  async mediaTable(key: string, file: string): Promise<MediaTable> {
    return pick(this.#find(key).media?.tables, file);
  }
  async mediaText(key: string, file: string): Promise<MediaText> {
    return pick(this.#find(key).media?.texts, file);
  }
  async events(key: string): Promise<Events> {
    return this.#find(key).events;
  }
  async alerts(key: string): Promise<Alerts> {
    return this.#find(key).alerts;
  }
  async benchmarks(key: string): Promise<Benchmarks> {
    return this.#find(key).benchmarks ?? { benchmarks: [] };
  }
  async diagnosis(key: string): Promise<Diagnosis> {
    return this.#find(key).diagnosis;
  }
  async text(key: string, _kind: string, file: string): Promise<TextPart> {
    const found = this.#find(key).texts?.[file];
    if (!found) throw new SourceError(404, "this file is not in the report");
    return found;
  }
  async patch(key: string): Promise<PatchText> {
    const found = this.#find(key).patch;
    if (!found) throw new SourceError(404, "the patch is not in the report");
    return found;
  }
  async compare(query: ComparisonQuery): Promise<Comparison> {
    const found = this.#data.comparison;
    if (!found) throw new SourceError(404, "this report has only one run");
    const wanted = new Set(query.names);
    const chosen = query.names.length ? found.series.filter((series) => wanted.has(series.name)) : found.series;
    return { ...found, axis: query.x, series: chosen.map((series) => this.#move(series, query)) };
  }
  curves(): Promise<Curves> {
    return Promise.reject(new SourceError(404, "a report has no list of runs"));
  }
  sweep(): Promise<Sweep> {
    return Promise.reject(new SourceError(404, "a report has no list of runs"));
  }
  exportAddress(): null {
    return null;
  }
  reportAddress(): null {
    return null;
  }
  remove(): Promise<never> {
    return Promise.reject(new SourceError(403, "a report is read-only"));
  }
  edit(): Promise<never> {
    return this.remove();
  }
  stop(): Promise<void> {
    return this.remove();
  }
  controlAlert(): Promise<void> {
    return this.remove();
  }
  async view(project: string): Promise<Tagged<View>> {
    return { found: Object.hasOwn(this.#data.views, project) ? this.#data.views[project] : emptyView(project), tag: "" };
  }
  saveView(): Promise<never> {
    return this.remove();
  }
  follow(_run: string, _listener: Listener): () => void {
    return () => {};
  }

  // A series by step, over what the query asks for.
  #move<T extends Series & { key: string }>(series: T, query: ComparisonQuery): T {
    const item = this.#find(series.key);
    const clock = item.clock;
    let moved = series;
    if (query.x !== "step" && clock) {
      const origin = query.x === "relative" && item.run.started ? Date.parse(item.run.started) / 1000 : 0;
      moved = { ...series, x: series.x.map((x) => interpolate(clock.step, clock.time, x) - origin) };
    }
    if (query.start === undefined && query.end === undefined) return moved;
    return { ...moved, ...cut(moved, query.start ?? -Infinity, query.end ?? Infinity) };
  }

  #find(key: string): ReportRun {
    const found = Object.hasOwn(this.#data.runs, key) ? this.#data.runs[key] : undefined;
    if (!found) throw new SourceError(404, `the report has no run '${key}'`);
    return found;
  }
}

// As describe_range in views/data/clock.py, by the clock of the report.
function moveRange(item: ReportRun, range: { start: number; end: number }, x: string, to: string): Range {
  const nowhere = { start: null, end: null };
  const scales: Record<string, number> = { time: 0, relative: item.run.started ? Date.parse(item.run.started) / 1000 : 0 };
  let limits = [range.start, range.end];
  if (x in scales && to in scales) limits = limits.map((at) => at + scales[x] - scales[to]);
  else {
    if (!item.clock || [x, to].some((axis) => axis !== "step" && !(axis in scales))) return nowhere;
    const { step, time } = item.clock;
    limits = x === "step" ? limits.map((at) => interpolate(step, time, at) - scales[to]) : limits.map((at) => interpolate(time, step, at + scales[x]));
  }
  return limits[1] > limits[0] ? { start: limits[0], end: limits[1] } : nowhere;
}

function pick<T>(files: Record<string, T> | undefined, file: string): T {
  if (!files || !Object.hasOwn(files, file)) throw new SourceError(404, "this file is not in the report");
  return files[file];
}

// What the server would answer, from what is in the file.
export function selectSeries(item: ReportRun, query: SeriesQuery): Series[] {
  const wanted = new Set(query.names);
  const tables = Object.hasOwn(item.series, query.table) ? item.series[query.table] : {};
  const axis = query.x === "relative" ? "time" : query.x;
  let found = (tables[axis] ?? tables.step ?? tables.time ?? []).filter((series) => wanted.has(series.name));
  found.sort((a, b) => query.names.indexOf(a.name) - query.names.indexOf(b.name));
  const clock = item.clock;
  if (axis === "time" && !tables.time && clock) {
    found = found.map((series) => ({ ...series, x: series.x.map((x) => interpolate(clock.step, clock.time, x)) }));
  }
  if (query.rank !== undefined) {
    const role = Object.values(tables)[0]?.[0]?.labels.role; // a rank alone is one of the lowest role, which comes first
    found = found.filter((series) => (series.rank ?? 0) === query.rank && series.labels.role === role);
  }
  if (query.x === "relative") {
    const origin = item.run.started ? Date.parse(item.run.started) / 1000 : 0;
    found = found.map((series) => ({ ...series, x: series.x.map((x) => x - origin) }));
  } else if (query.x !== "time" && query.x !== "step") {
    const scale = (tables.step ?? []).find((series) => series.name === query.x);
    found = scale ? found.map((series) => ({ ...series, x: series.x.map((x) => interpolate(scale.x, scale.y, x)) })) : [];
  }
  if (query.start !== undefined || query.end !== undefined) {
    found = found.map((series) => cut(series, query.start ?? -Infinity, query.end ?? Infinity));
  }
  if (query.rate) found = found.map(perSecond);
  return query.band ? bands(found) : found;
}

const BAND_POINTS = 300;

// Many series of one name and role as min, mean and max; as make_band in analysis/bands.py.
export function bands(found: Series[]): Series[] {
  const groups = new Map<string, Series[]>();
  for (const series of found) {
    const key = JSON.stringify([series.name, series.labels.role]);
    groups.set(key, [...(groups.get(key) ?? []), series]);
  }
  return [...groups.values()].flatMap((group) => (group.length > 1 ? band(group) : group));
}

function band(group: Series[]): Series[] {
  const full = group.filter((series) => series.x.length);
  if (!full.length) return [];
  const start = Math.min(...full.map((series) => series.x[0]));
  const end = Math.max(...full.map((series) => series.x[series.x.length - 1]));
  const count = Math.max(1, Math.min(BAND_POINTS, Math.max(...full.map((series) => series.x.length))));
  const width = (end - start) / count || 1;
  const low = new Array<number>(count).fill(Infinity);
  const high = new Array<number>(count).fill(-Infinity);
  const means = new Array<number>(count).fill(0);
  const members = new Array<number>(count).fill(0);
  const broken = new Map<number, string>();
  const logged = new Set<number>();
  for (const series of full) {
    const words = new Map(series.nonfinite ?? []);
    const sums = new Map<number, [number, number]>();
    const strange = new Set<number>();
    series.x.forEach((x, at) => {
      const y = series.y[at];
      const place = Math.min(Math.floor((x - start) / width), count - 1);
      const word = words.get(at);
      if (word !== undefined && !broken.has(place)) broken.set(place, word);
      if (y === null) {
        strange.add(place);
        return;
      }
      low[place] = Math.min(low[place], y);
      high[place] = Math.max(high[place], y);
      const [sum, seen] = sums.get(place) ?? [0, 0];
      sums.set(place, [sum + y, seen + 1]);
    });
    // Stands in a piece that this series misses.
    const fill = (missed: number, value: number) => {
      if (strange.has(missed)) return;
      low[missed] = Math.min(low[missed], value);
      high[missed] = Math.max(high[missed], value);
      means[missed] += value;
      members[missed]++;
    };
    // The mean is of the series' means: a rank that logs twice as often does not count twice.
    const known = [...sums].map(([place, [sum, seen]]) => ({ place, mean: sum / seen })).sort((a, b) => a.place - b.place);
    known.forEach(({ place, mean }, at) => {
      means[place] += mean;
      members[place]++;
      logged.add(place);
      // A piece that this series misses between two others: there it is where the line between them is.
      const next = known[at + 1];
      for (let missed = place + 1; next && missed < next.place; missed++) {
        fill(missed, mean + ((next.mean - mean) * (missed - place)) / (next.place - place));
      }
    });
    // At its ends a value holds for as long as the series usually waits for the next one.
    const finite = series.x.map((_, at) => at).filter((at) => series.y[at] !== null);
    if (!finite.length) continue;
    const [first, last] = [finite[0], finite[finite.length - 1]];
    const interval = usualInterval(series.x);
    for (let missed = known[0].place - 1; missed >= 0 && start + (missed + 1) * width >= series.x[first] - interval; missed--) {
      fill(missed, series.y[first]!);
    }
    for (let missed = known[known.length - 1].place + 1; missed < count && start + missed * width <= series.x[last] + interval; missed++) {
      fill(missed, series.y[last]!);
    }
  }
  // A piece without any value is not a gap, only a place between two logged ones.
  const some = members.map((_, at) => at).filter((at) => logged.has(at) || broken.has(at));
  const middle = (at: number) => (count > 1 && at === 0 ? start : count > 1 && at === count - 1 ? end : start + (at + 0.5) * width);
  const known = (values: number[]) => some.map((at) => (logged.has(at) ? values[at] : null));
  const all = (pick: (series: Series) => number | undefined) =>
    group.reduce<number | undefined>((sum, series) => (sum === undefined || pick(series) === undefined ? undefined : sum + pick(series)!), 0);
  return [{
    name: group[0].name, labels: group[0].labels.role === undefined ? {} : { role: group[0].labels.role }, rank: null, total: all((series) => series.total)!, nonfinite_total: all((series) => series.nonfinite_total),
    members: group.length, x: some.map(middle), y: known(means.map((sum, at) => sum / members[at])), low: known(low), high: known(high),
    nonfinite: some.flatMap((at, place): [number, string][] => (broken.has(at) ? [[place, broken.get(at)!]] : [])),
  }];
}

function usualInterval(x: number[]): number {
  const waits = x.slice(1).map((value, at) => value - x[at]).sort((a, b) => a - b);
  return waits.length ? (waits[(waits.length - 1) >> 1] + waits[waits.length >> 1]) / 2 : 0;
}

// The value at x, in a straight line between two that are known.
export function interpolate(xs: number[], ys: (number | null)[], x: number): number {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  const after = ys[low] ?? 0;
  if (low === 0 || xs[low] === x || x > xs[low]) return after;
  const before = ys[low - 1] ?? after;
  return before + ((after - before) * (x - xs[low - 1])) / (xs[low] - xs[low - 1]);
}

function cut(series: Series, start: number, end: number): Series {
  const keep = series.x.map((x) => x >= start && x <= end);
  const places = new Map<number, number>();
  let count = 0;
  keep.forEach((kept, at) => kept && places.set(at, count++));
  const pick = <T,>(values: T[] | undefined) => values?.filter((_, at) => keep[at]);
  const marks = series.nonfinite
    ?.filter(([at]) => keep[at])
    .map(([at, word]): [number, string] => [places.get(at)!, word]);
  // How many a thinned series has in the range is unknown, unless it is the whole series or there are none.
  const whole = series.nonfinite_total === (series.nonfinite?.length ?? 0);
  const total = count === series.x.length ? series.nonfinite_total : whole || !marks?.length ? (marks?.length ?? 0) : undefined;
  return {
    ...series,
    nonfinite_total: total,
    x: pick(series.x)!,
    y: pick(series.y)!,
    low: pick(series.low),
    high: pick(series.high),
    nonfinite: marks,
  };
}

function perSecond(series: Series): Series {
  const x: number[] = [];
  const y: number[] = [];
  for (let at = 1; at < series.x.length; at++) {
    const span = series.x[at] - series.x[at - 1];
    const rise = (series.y[at] ?? NaN) - (series.y[at - 1] ?? NaN);
    if (span > 0 && rise >= 0) {
      x.push(series.x[at]);
      y.push(rise / span);
    }
  }
  return { ...series, x, y, nonfinite: undefined, nonfinite_total: 0 };
}

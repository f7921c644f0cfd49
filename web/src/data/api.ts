import { SourceError, type ComparisonQuery, type CurvesQuery, type Edit, type Listener, type SeriesQuery, type Source, type SweepQuery, type Tagged, type UseQuery } from "./source.ts";
import type {
  About, Alerts, Benchmarks, Comparison, Curves, Diagnosis, Edited, Events, Fleet, FleetFaults, FleetUse, Histogram, Layers, Machines, Media, MediaTable, MediaText, Panels, PatchText, Range, Run, Runs, SeriesAnswer, States, Sweep, TextPart, View,
} from "./types.ts";
import { mergeRuns } from "../logic/table.ts";

const BASE = "api/v1";

async function ask<T>(path: string, init?: RequestInit): Promise<T> {
  return (await askTagged<T>(path, init)).found;
}

async function askTagged<T>(path: string, init?: RequestInit): Promise<Tagged<T>> {
  let answer: Response;
  try {
    answer = await fetch(`${BASE}${path}`, init);
  } catch {
    throw new SourceError(0, "the server is not responding", "is `trainvitals serve` still running?");
  }
  const body = await answer.json().catch(() => undefined);
  if (!answer.ok) {
    const problem = body?.error;
    throw new SourceError(answer.status, problem?.message ?? `the server returned status ${answer.status}`, problem?.hint ?? "");
  }
  // The server or the connection ended amid the answer, or the page is being left.
  if (body === undefined) throw new SourceError(0, "the server's answer was incomplete", "is `trainvitals serve` still running?");
  return { found: body as T, tag: answer.headers.get("etag") ?? "" };
}

function query(pairs: [string, string | number | boolean | undefined][]): string {
  const found = new URLSearchParams();
  for (const [name, value] of pairs) if (value !== undefined) found.append(name, String(value));
  const text = found.toString();
  return text ? `?${text}` : "";
}

interface Waiting {
  query: SeriesQuery;
  resolve(answer: SeriesAnswer): void;
  reject(error: unknown): void;
}

const MOST_NAMES = 50;

export class ApiSource implements Source {
  readonly isLive = true;
  readonly asOf = null;
  #waiting = new Map<string, Waiting[]>();
  #runs: Runs | null = null;
  #first: Promise<Runs> | null = null;

  about(): Promise<About> {
    return ask("/about");
  }
  panels(): Promise<Panels> {
    return ask("/panels");
  }
  // The list of all runs is long: who asks before the first answer gets that one.
  runs(): Promise<Runs> {
    if (this.#runs) return this.#askForRuns();
    this.#first ??= this.#askForRuns().finally(() => { this.#first = null; });
    return this.#first;
  }
  async #askForRuns(): Promise<Runs> {
    const known = this.#runs;
    const merged = mergeRuns(known, await ask<Runs>(`/runs${query([["since", known?.version]])}`));
    this.#runs = merged;
    return merged;
  }
  machines(): Promise<Machines> {
    return ask("/machines");
  }
  fleet(window: string): Promise<Fleet> {
    return ask(`/fleet${query([["window", window]])}`);
  }
  fleetUse({ period, by, until }: UseQuery): Promise<FleetUse> {
    return ask(`/fleet/use${query([["period", period], ["by", by], ["until", until]])}`);
  }
  fleetFaults(days: number): Promise<FleetFaults> {
    return ask(`/fleet/faults${query([["days", days]])}`);
  }
  run(key: string): Promise<Run> {
    return ask(`/runs/${encodeURIComponent(key)}`);
  }

  // Charts that are drawn in the same moment ask together: one request for all names that share the rest.
  series(run: string, wanted: SeriesQuery): Promise<SeriesAnswer> {
    const { names: _, ...rest } = wanted;
    const key = JSON.stringify([run, rest]);
    return new Promise((resolve, reject) => {
      const together = this.#waiting.get(key);
      if (together) {
        together.push({ query: wanted, resolve, reject });
        return;
      }
      this.#waiting.set(key, [{ query: wanted, resolve, reject }]);
      queueMicrotask(() => setTimeout(() => this.#flush(run, key), 0));
    });
  }

  #flush(run: string, key: string): void {
    const waiting = this.#waiting.get(key) ?? [];
    this.#waiting.delete(key);
    let batch: Waiting[] = [];
    let count = 0;
    for (const item of waiting) {
      // The first chart of a page does not wait for the others.
      if (batch.length && (item === waiting[1] || count + item.query.names.length > MOST_NAMES)) {
        void this.#request(run, batch);
        batch = [];
        count = 0;
      }
      batch.push(item);
      count += item.query.names.length;
    }
    if (batch.length) void this.#request(run, batch);
  }

  async #request(run: string, batch: Waiting[]): Promise<void> {
    const first = batch[0].query;
    const names = [...new Set(batch.flatMap((item) => item.query.names))];
    const path = `/runs/${encodeURIComponent(run)}/series${query([
      ...names.map((name): [string, string] => ["name", name]),
      ...(first.chosen ?? []).map((text): [string, string] => ["chosen", text]),
      ["table", first.table],
      ["x", first.x],
      ["start", first.start],
      ["end", first.end],
      ["points", first.points],
      ["rank", first.rank],
      ["band", first.band || undefined],
      ["rate", first.rate || undefined],
      ["all_attempts", first.allAttempts || undefined],
    ])}`;
    try {
      const answer = await ask<SeriesAnswer>(path);
      for (const item of batch) {
        // What a pattern stands for, only the server knows; those who ask together chose the same.
        if (item.query.chosen) {
          item.resolve(answer);
          continue;
        }
        const wanted = new Set(item.query.names);
        item.resolve({ ...answer, series: answer.series.filter((series) => wanted.has(series.name)) });
      }
    } catch (error) {
      for (const item of batch) item.reject(error);
    }
  }

  range(run: string, x: string, start: number, end: number, to: string): Promise<Range> {
    return ask(`/runs/${encodeURIComponent(run)}/range${query([["x", x], ["start", start], ["end", end], ["to", to]])}`);
  }
  async states(run: string, table: string, names: string[]): Promise<States[]> {
    const path = `/runs/${encodeURIComponent(run)}/states${query([["table", table], ...names.map((name): [string, string] => ["name", name])])}`;
    return (await ask<{ states: States[] }>(path)).states;
  }
  layers(run: string, measure: string, points: number): Promise<Layers> {
    return ask(`/runs/${encodeURIComponent(run)}/layers${query([["measure", measure], ["points", points]])}`);
  }
  async histograms(run: string, name: string): Promise<Histogram[]> {
    const answer = await ask<{ histograms: Histogram[] }>(
      `/runs/${encodeURIComponent(run)}/histograms${query([["name", name]])}`,
    );
    return answer.histograms;
  }
  media(run: string): Promise<Media> {
    return ask(`/runs/${encodeURIComponent(run)}/media`);
  }
  imageAddress(run: string, file: string): string {
    return `${BASE}/runs/${encodeURIComponent(run)}/media/image${query([["file", file]])}`;
  }
  mediaTable(run: string, file: string): Promise<MediaTable> {
    return ask(`/runs/${encodeURIComponent(run)}/media/table${query([["file", file]])}`);
  }
  mediaText(run: string, file: string): Promise<MediaText> {
    return ask(`/runs/${encodeURIComponent(run)}/media/text${query([["file", file]])}`);
  }
  events(run: string): Promise<Events> {
    return ask(`/runs/${encodeURIComponent(run)}/events`);
  }
  alerts(run: string): Promise<Alerts> {
    return ask(`/runs/${encodeURIComponent(run)}/alerts`);
  }
  benchmarks(run: string): Promise<Benchmarks> {
    return ask(`/runs/${encodeURIComponent(run)}/benchmarks`);
  }
  diagnosis(run: string): Promise<Diagnosis> {
    return ask(`/runs/${encodeURIComponent(run)}/diagnosis`);
  }
  text(run: string, kind: "stacks" | "console", file: string, after?: number): Promise<TextPart> {
    return ask(`/runs/${encodeURIComponent(run)}/${kind}/${encodeURIComponent(file)}${query([["after", after]])}`);
  }
  patch(run: string): Promise<PatchText> {
    return ask(`/runs/${encodeURIComponent(run)}/patch`);
  }
  compare(wanted: ComparisonQuery): Promise<Comparison> {
    return ask(
      `/compare${query([
        ...wanted.runs.map((key): [string, string] => ["run", key]),
        ...wanted.names.map((name): [string, string] => ["name", name]),
        ["x", wanted.x],
        ["start", wanted.start],
        ["end", wanted.end],
        ["points", wanted.points],
      ])}`,
    );
  }
  curves({ names, ...wanted }: CurvesQuery): Promise<Curves> {
    return ask(`/curves${query([...names.map((name): [string, string] => ["name", name]), ...Object.entries(wanted)])}`);
  }
  sweep(wanted: SweepQuery): Promise<Sweep> {
    return ask(`/sweep${query(Object.entries(wanted))}`);
  }
  reportAddress(run: string, format: string): string {
    return `${BASE}/runs/${encodeURIComponent(run)}/report${query([["format", format]])}`;
  }
  exportAddress(run: string, format: string, table: string): string {
    return `${BASE}/runs/${encodeURIComponent(run)}/export${query([["format", format], ["table", table]])}`;
  }

  async remove(run: string): Promise<void> {
    await ask(`/runs/${encodeURIComponent(run)}`, { method: "DELETE" });
  }
  edit(run: string, changes: Edit): Promise<Edited> {
    return ask(`/runs/${encodeURIComponent(run)}`, json("PATCH", changes));
  }
  view(project: string): Promise<Tagged<View>> {
    return askTagged(`/projects/${encodeURIComponent(project)}/view`);
  }
  saveView({ project, is_kept: _, problem: __, columns, ...view }: View, tag: string): Promise<Tagged<View>> {
    const { headers, ...sent } = json("PUT", { ...view, ...(columns && { columns }) });
    return askTagged(`/projects/${encodeURIComponent(project)}/view`, { ...sent, headers: { ...headers, "if-match": tag } });
  }
  async stop(run: string): Promise<void> {
    await ask(`/runs/${encodeURIComponent(run)}/stop`, json("POST", {}));
  }
  async controlAlert(run: string, action: "ack" | "silence", rule: string, seconds: number): Promise<void> {
    await ask(`/runs/${encodeURIComponent(run)}/alerts`, json("POST", { action, rule, seconds }));
  }

  follow(run: string, listener: Listener): () => void {
    let stream: EventSource | null = null;
    let timer = 0;
    let wait = 1000;
    let closed = false;
    const open = () => {
      stream = new EventSource(`${BASE}/runs/${encodeURIComponent(run)}/stream`);
      const on = (name: string, take: (data: any) => void) =>
        stream!.addEventListener(name, (message) => take(JSON.parse((message as MessageEvent).data)));
      on("points", (data) => listener.points(data.series, data.more));
      on("event", () => listener.event());
      on("alert", () => listener.alert());
      on("state", (data) => listener.state(data));
      on("reset", () => listener.reset());
      stream.onopen = () => {
        wait = 1000;
        listener.connection(true);
      };
      stream.onerror = () => {
        listener.connection(false);
        // The browser reconnects by itself, but not after an HTTP error: then we do, with backoff.
        if (stream?.readyState === EventSource.CLOSED && !closed) {
          timer = window.setTimeout(open, wait);
          wait = Math.min(wait * 2, 15_000);
        }
      };
    };
    open();
    return () => {
      closed = true;
      window.clearTimeout(timer);
      stream?.close();
    };
  }
}

function json(method: string, body: unknown): RequestInit {
  return { method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}

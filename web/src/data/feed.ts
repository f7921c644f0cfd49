// The series of one chart: requested once, then extended from the live stream, and requested again when that would make
// the chart coarser or wrong.
import { signal, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { append, isSame } from "../logic/append.ts";
import { onPoints, run, source } from "./store.ts";
import type { SeriesQuery } from "./source.ts";
import type { Increment, Series } from "./types.ts";

const AGAIN_MS = 3000;

export interface FeedState {
  series: Series[] | null;
  error: Error | null;
  problems?: string[];
}

export class Feed {
  readonly state = signal<FeedState>({ series: null, error: null });
  #run: string;
  #query: SeriesQuery;
  #names: Set<string>;
  #stop: () => void;
  #closed = false;
  #asked = 0;
  #asking = false;
  #again = false;
  #timer = 0;
  #pending: Increment[] = [];
  #frame = 0;

  constructor(runKey: string, query: SeriesQuery) {
    this.#run = runKey;
    this.#query = query;
    this.#names = new Set(query.names);
    this.#stop = onPoints(
      (series, more) => this.#take(series, more),
      () => void this.#ask(),
    );
    void this.#ask();
  }

  close(): void {
    this.#closed = true;
    this.#stop();
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
  }

  // One request at a time: an older answer that comes after a newer one would take points away again.
  async #ask(): Promise<void> {
    if (this.#asking) {
      this.#again = true;
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#asked = Date.now();
    this.#asking = true;
    this.#again = false;
    this.#pending = [];
    try {
      const answer = await source.value!.series(this.#run, this.#query);
      if (!this.#closed) this.state.value = { series: answer.series, error: null, problems: answer.problems };
    } catch (error) {
      if (!this.#closed) this.state.value = { series: this.state.value.series, error: error as Error };
    }
    this.#asking = false;
    if (this.#closed) return;
    if (this.#again) void this.#ask();
    else this.#grow(true);
  }

  #askSoon(): void {
    if (this.#timer || this.#closed) return;
    this.#timer = window.setTimeout(() => void this.#ask(), Math.max(0, this.#asked + AGAIN_MS - Date.now()));
  }

  #take(increments: Increment[], more: string[]): void {
    const mine = increments.filter((item) => item.table === this.#query.table && (this.#query.chosen || this.#names.has(item.name)));
    if (mine.length) {
      this.#pending.push(...mine);
      // Several messages in one frame are drawn once.
      if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#grow());
    }
    if (more.includes(this.#query.table)) this.#askSoon();
  }

  // What came while the answer was under way waits for it, and may be in it.
  #grow(answered = false): void {
    this.#frame = 0;
    if (this.#asking) return;
    const pending = this.#pending;
    this.#pending = [];
    const known = this.state.value.series;
    if (!known || !pending.length || this.#closed) return;
    const plain = ["step", "time", "relative"].includes(this.#query.x);
    if (!plain || this.#query.chosen || this.#query.band || this.#query.rate || this.#query.end !== undefined) {
      // What is zoomed in does not grow; what is computed on the server is computed there again.
      if (this.#query.end === undefined) this.#askSoon();
      return;
    }
    const origin = run.value?.started ? Date.parse(run.value.started) / 1000 : 0;
    let grown = known;
    for (const increment of pending) {
      if (this.#query.rank !== undefined && !isChosen(increment, this.#query.rank, known)) continue;
      const at = grown.findIndex((series) => isSame(series, increment));
      if (at < 0) {
        this.#askSoon();
        continue;
      }
      const longer = append(grown[at], increment, this.#query.x, origin, answered);
      if (longer === null) this.#askSoon();
      else if (longer !== grown[at]) grown = grown.with(at, longer);
    }
    if (grown === known) return;
    if (grown.some((series) => series.x.length > this.#query.points * 2)) this.#askSoon();
    this.state.value = { series: grown, error: null };
  }
}

// Of a rank alone the server gives that of the lowest role, and nothing of the others.
function isChosen(increment: Increment, rank: number, known: Series[]): boolean {
  return (increment.rank ?? 0) === rank && (!known.length || increment.labels.role === known[0].labels.role);
}

// The feed of a query as a signal; what was shown stays until the answer to a new query is there.
export function useFeed(runKey: string | null, query: SeriesQuery | null) {
  const shown = useSignal<FeedState>({ series: null, error: null });
  const key = JSON.stringify([runKey, query]);
  const feed = useMemo(() => (runKey && query && (query.names.length || query.chosen?.length) ? new Feed(runKey, query) : null), [key]);
  useEffect(() => () => feed?.close(), [feed]);
  const current = useSignal(feed);
  current.value = feed;
  useSignalEffect(() => {
    const state = current.value?.state.value;
    if (state && (state.series || state.error)) shown.value = state;
    if (!current.value) shown.value = { series: null, error: null };
  });
  return shown;
}

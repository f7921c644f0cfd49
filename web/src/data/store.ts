// What the page knows, as signals. One run is followed at a time: the one in the address.
import { computed, effect, signal, untracked } from "@preact/signals";
import { formatRoute, number, parseRoute, trackerPath, withQuery, type Route } from "../logic/route.ts";
import { SourceError, type Listener, type Source } from "./source.ts";
import type { About, Increment, Panels, Run, Runs } from "./types.ts";

export const source = signal<Source | null>(null);
export const about = signal<About | null>(null);
export const panels = signal<Panels | null>(null);
export const runs = signal<Runs | null>(null);
export const runsError = signal<Error | null>(null);
export const run = signal<Run | null>(null);
export const runError = signal<Error | null>(null);
export const route = signal<Route>(parseRoute(location.hash));
// How often the events and alerts of the run have changed: what shows them reads them again.
export const eventsRound = signal(0);
export const alertsRound = signal(0);

// -- connection: heard is when the server last sent anything

export const connected = signal(true);
export const heard = signal(Date.now());
export const now = signal(Date.now());
// All pages of a run below each other, to be printed.
export const whole = computed(() => route.value.query.has("print"));
const STALE_MS = 8000;
// A run is streamed and silence means something; a list is asked for, and only while somebody looks.
export const stale = computed(() => {
  if (!source.value?.isLive) return false;
  return route.value.run === null ? !connected.value : !!run.value && (!connected.value || now.value - heard.value > STALE_MS);
});

// -- the theme

export type Theme = "system" | "dark" | "light";
const media = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(media.matches);
media.addEventListener("change", () => (systemDark.value = media.matches));
export const theme = signal<Theme>(remembered("theme") as Theme ?? "system");
export const dark = computed(() => !whole.value && (theme.value === "system" ? systemDark.value : theme.value === "dark")); // paper is white

// localStorage is missing in some browsers for files, and may be forbidden.
export function remembered(name: string): string | null {
  try {
    return localStorage.getItem(`trainvitals.${name}`);
  } catch {
    return null;
  }
}
export function remember(name: string, value: string): void {
  try {
    localStorage.setItem(`trainvitals.${name}`, value);
  } catch {
    // Not remembered for the next visit, nothing worse.
  }
}

// -- where we are

export function go(to: Route, replace = false): void {
  const hash = formatRoute(to);
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  route.value = to;
}
export function goRun(key: string, page = "overview"): void {
  go({ page, run: key, query: new Map() });
}
export function setQuery(changes: Record<string, string | number | string[] | undefined>, replace = false): void {
  go(withQuery(route.value, changes), replace);
}

export interface Zoom {
  axis: string;
  start: number;
  end: number;
}
export const zoom = computed<Zoom | null>(() => {
  const start = number(route.value, "from");
  const end = number(route.value, "to");
  const axis = route.value.query.get("zx")?.[0] ?? "step";
  return start !== undefined && end !== undefined && end > start ? { axis, start, end } : null;
});

// The same zoom on another axis, as the server reads it from the run's rows. Undefined: not known yet.
const moved = signal<ReadonlyMap<string, Zoom | null>>(new Map());
export function zoomOn(axis: string): Zoom | null | undefined {
  const made = zoom.value;
  const key = route.value.run;
  if (!made || made.axis === axis) return made;
  if (key === null) return null; // of several runs, a step was at several times
  const place = JSON.stringify([key, made, axis]);
  const known = moved.value.get(place);
  if (known === undefined) void moveZoom(place, key, made, axis);
  return known;
}

const moving = new Set<string>();
async function moveZoom(place: string, key: string, made: Zoom, axis: string): Promise<void> {
  if (moving.has(place)) return;
  moving.add(place);
  let found: Zoom | null = null;
  try {
    const { start, end } = await source.value!.range(key, made.axis, made.start, made.end, axis);
    if (start !== null && end !== null) found = { axis, start, end };
  } catch {
    // The whole run is shown then; the charts themselves say what is wrong with the server.
  }
  moving.delete(place);
  // Only of the zoom that is: others are asked for again.
  const current = [...moved.value].filter(([other]) => JSON.stringify(JSON.parse(other)[1]) === JSON.stringify(zoom.value));
  moved.value = new Map([...current, [place, found]]);
}

export function setZoom(to: Zoom | null): void {
  setQuery(to ? { zx: to.axis, from: +to.start.toPrecision(13), to: +to.end.toPrecision(13) } : { zx: undefined, from: undefined, to: undefined });
}

// -- live

type Taker = (series: Increment[], more: string[]) => void;
const takers = new Set<Taker>();
const resets = new Set<() => void>();
export function onPoints(take: Taker, reset: () => void): () => void {
  takers.add(take);
  resets.add(reset);
  return () => {
    takers.delete(take);
    resets.delete(reset);
  };
}

const REFRESH_MS = 3000;
const SOON_MS = 300;
let refreshed = 0;
let refreshing = false;
let refreshAgain = false;

let early: Promise<Run | null> | null = null;

export async function refreshRun(): Promise<void> {
  const key = route.value.run;
  const from = source.value;
  if (!key || !from) return;
  if (refreshing) {
    refreshAgain = true;
    return;
  }
  refreshing = true;
  refreshAgain = false;
  refreshed = Date.now();
  try {
    const asked = early;
    early = null;
    const found = (await asked) ?? (await from.run(key));
    if (route.value.run === key) {
      run.value = found;
      runError.value = null;
    }
  } catch (error) {
    if (route.value.run === key) runError.value = error as Error;
  } finally {
    refreshing = false;
  }
  if (refreshAgain) void refreshRun();
}

// Many in a row, a flood of events for one, are one.
function soon(act: () => void): () => void {
  let timer = 0;
  return () => {
    timer ||= window.setTimeout(() => {
      timer = 0;
      act();
    }, SOON_MS);
  };
}

const readEvents = soon(() => eventsRound.value++);
const readAlerts = soon(() => alertsRound.value++);
const refreshSoon = soon(() => void refreshRun());

function refreshNow(): void {
  if (!refreshing && Date.now() - refreshed > REFRESH_MS) void refreshRun();
}

export async function refreshRuns(): Promise<void> {
  try {
    runs.value = await source.value!.runs();
    runsError.value = null;
  } catch (error) {
    runsError.value = error as Error;
  }
  if (route.value.run !== null) return; // its stream knows
  connected.value = !(runsError.value instanceof SourceError && runsError.value.status === 0);
  if (connected.value) heard.value = Date.now();
}

const listener: Listener = {
  points(series, more) {
    heard.value = Date.now();
    for (const take of takers) take(series, more);
    refreshNow();
  },
  event: readEvents,
  alert() {
    readAlerts();
    refreshSoon();
  },
  state(state) {
    heard.value = Date.now();
    const known = run.value;
    if (known && (known.status !== state.status || known.attempt !== (state.attempt ?? known.attempt))) void refreshRun();
    else if (state.live) refreshNow();
    // The last values may be in no message: the charts of a run that has ended are read once more, whole.
    if (known?.live && !state.live) listener.reset();
  },
  reset() {
    for (const reset of resets) reset();
    readEvents();
    readAlerts();
  },
  connection(up) {
    if (up && !connected.value) void refreshRun();
    connected.value = up;
    if (up) heard.value = Date.now();
  },
};

export function start(from: Source, first: { about: About; panels: Panels }, firstRun: Promise<Run | null> | null): void {
  source.value = from;
  early = firstRun;
  about.value = first.about;
  panels.value = first.panels;
  const follow = () => {
    const path = from.isLive ? trackerPath(location.hash) : null;
    if (path !== null) location.replace(path);
    else route.value = parseRoute(location.hash);
  };
  follow();
  window.addEventListener("hashchange", follow);
  window.addEventListener("popstate", follow);
  if (from.asOf === null) setInterval(() => (now.value = Date.now()), 1000);
  else now.value = from.asOf;

  const runKey = computed(() => route.value.run);
  effect(() => {
    const key = runKey.value;
    // Only another run starts over: what is read in here must not make it depend on the rest of the address.
    return untracked(() => {
      run.value = null;
      runError.value = null;
      connected.value = true;
      heard.value = Date.now();
      if (!key) return;
      refreshing = false;
      void refreshRun();
      return from.follow(key, listener);
    });
  });

  void refreshRuns();
  // The list changes slowly, and an answer that has not changed costs a 304.
  setInterval(() => {
    if (from.isLive && document.visibilityState === "visible" && !route.value.run) void refreshRuns();
  }, 4000);
}

effect(() => {
  document.documentElement.dataset.theme = dark.value ? "dark" : "light";
  remember("theme", theme.value);
});

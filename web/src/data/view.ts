// How each project is shown, as it is kept: with its runs where the server may write, else in this browser.
import { signal } from "@preact/signals";
import { emptyView, parseView } from "../logic/own_panels.ts";
import { SourceError, type Tagged } from "./source.ts";
import { about, remember, remembered, source } from "./store.ts";
import type { View } from "./types.ts";

export type Change = (view: View) => View;

export interface Kept {
  view: View;
  place: "project" | "browser";
  problem: string;
}

interface Known {
  base: Tagged<View>;
  pending: Change[]; // made here, and not yet by the server
  place: Kept["place"];
  problem: string;
}

const MOST_TRIES = 5;
const known = signal<ReadonlyMap<string, Known>>(new Map());
const reading = new Set<string>();

// Undefined: it is being read.
export function keptView(project: string): Kept | undefined {
  const found = known.value.get(project);
  if (!found) {
    void read(project);
    return undefined;
  }
  return { view: found.pending.reduce(apply, found.base.found), place: found.place, problem: found.problem };
}

// A change that no longer fits what somebody else made of it is reported when it is sent.
function apply(view: View, change: Change): View {
  try {
    return change(view);
  } catch {
    return view;
  }
}

function put(project: string, changes: Partial<Known>): void {
  const before = known.value.get(project)!;
  known.value = new Map(known.value).set(project, { ...before, ...changes });
}

async function read(project: string): Promise<void> {
  if (reading.has(project)) return;
  reading.add(project);
  const own = parseView(remembered(placeOf(project)), project);
  let base: Tagged<View> = { found: emptyView(project), tag: "" };
  let problem = "";
  try {
    base = await source.value!.view(project);
    problem = base.found.problem;
  } catch (error) {
    problem = (error as Error).message;
  }
  const place = about.value?.allow_edit && !problem ? "project" : "browser";
  // What was made in this browser is not lost once the server may write: it is kept with the first change.
  const isOwn = own && source.value!.isLive && (place === "browser" || !base.found.is_kept);
  known.value = new Map(known.value).set(project, { base: isOwn ? { ...base, found: own } : base, pending: [], place, problem });
  reading.delete(project);
}

function placeOf(project: string): string {
  return `view:${project}`;
}

// Shown at once. Rejected if it could not be kept; where nobody waits for that, the page says so.
export function changeView(project: string, change: Change): Promise<void> {
  const before = known.value.get(project);
  if (!before) return Promise.resolve();
  if (before.place === "browser") return keepHere(project, change);
  put(project, { pending: [...before.pending, change], problem: "" });
  const sent = (sending.get(project) ?? Promise.resolve()).then(() => send(project, change));
  sending.set(project, sent.catch(() => {}));
  sent.catch((error: Error) => put(project, { problem: `not kept: ${error.message}` }));
  return sent;
}

async function keepHere(project: string, change: Change): Promise<void> {
  const { base } = known.value.get(project)!;
  const isLive = source.value!.isLive;
  const newest = isLive ? parseView(remembered(placeOf(project)), project) : null; // another tab may have changed it
  const found = { ...change(newest ?? base.found), is_kept: false };
  put(project, { base: { ...base, found } });
  if (isLive) remember(placeOf(project), JSON.stringify(found));
}

// One after the other: each is made on what the one before has led to.
const sending = new Map<string, Promise<void>>();

async function send(project: string, change: Change): Promise<void> {
  try {
    put(project, { base: await save(project, known.value.get(project)!.base, change) });
  } finally {
    put(project, { pending: known.value.get(project)!.pending.filter((item) => item !== change) });
  }
}

async function save(project: string, before: Tagged<View>, change: Change): Promise<Tagged<View>> {
  let base = before;
  for (let attempt = 1; ; attempt++) {
    try {
      return await source.value!.saveView(change(base.found), base.tag);
    } catch (error) {
      if (!(error instanceof SourceError && error.status === 412 && attempt < MOST_TRIES)) throw error;
    }
    base = await source.value!.view(project);
    put(project, { base });
  }
}

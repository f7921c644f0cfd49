// What pages take from the store, under one name.
export { about, alertsRound, eventsRound, now, panels, refreshRun, refreshRuns, remember, remembered, run, runs, runsError, setQuery, source, stale } from "./store.ts";
import { route } from "./store.ts";
import type { Route } from "../logic/route.ts";

export function usePageRoute(): Route {
  return route.value;
}

// Attempts, events and alerts as marks on the charts of a run.
import { useEffect, useMemo, useState } from "preact/hooks";
import { useFeed } from "../data/feed.ts";
import { alertsRound, eventsRound, run, source } from "../data/store.ts";
import { annotateAttempts, collectAnnotations, place, type Annotation, type Mark } from "../logic/marks.ts";

const PLAIN = ["step", "time", "relative"];
const SCALE_POINTS = 1000;

export function useMarks(axis: string): Mark[] {
  const key = run.value?.key;
  const [annotations, setAnnotations] = useState<Annotation[]>([]);
  useEffect(() => {
    if (!key || !source.value) return;
    let current = true;
    void Promise.all([source.value.events(key), source.value.alerts(key)]).then(
      ([events, alerts]) => current && setAnnotations(collectAnnotations(events.events, alerts.history)),
      () => {},
    );
    return () => {
      current = false;
    };
  }, [key, eventsRound.value, alertsRound.value]);
  const feed = useFeed(key ?? null, PLAIN.includes(axis) ? null : { names: [axis], table: "training", x: "step", points: SCALE_POINTS });
  const scale = feed.value.series?.[0] ?? null;
  const started = run.value?.started;
  const attempts = run.value?.attempts;
  return useMemo(() => place([...annotateAttempts(attempts ?? []), ...annotations], axis, started, scale), [annotations, attempts, axis, started, scale]);
}

// Events and alerts as marks on the charts of a run.
import { useEffect, useMemo, useState } from "preact/hooks";
import { newAlerts, newEvents, run, source } from "../data/store.ts";
import type { Mark } from "./chart.tsx";

interface Told {
  timestamp: string;
  step?: number;
  severity: string;
  text: string;
}

export function useMarks(axis: string): Mark[] {
  const key = run.value?.key;
  const [told, setTold] = useState<Told[]>([]);
  useEffect(() => {
    if (!key || !source.value) return;
    let current = true;
    void Promise.all([source.value.events(key), source.value.alerts(key)]).then(
      ([events, alerts]) => {
        if (!current) return;
        const found: Told[] = events.events
          .filter((row) => row.severity === "warning" || row.severity === "critical")
          .map((row) => ({ timestamp: row.timestamp, step: row.step, severity: row.severity!, text: row.message ?? row.event ?? "" }));
        for (const row of alerts.history) {
          if (row.state === "firing") found.push({ timestamp: row.timestamp, step: row.step, severity: row.severity ?? "warning", text: row.message ?? row.rule ?? "" });
        }
        setTold(found);
      },
      () => {},
    );
    return () => {
      current = false;
    };
  }, [key, newEvents.value.length, newAlerts.value.length]);
  const started = run.value?.started;
  return useMemo(() => {
    const origin = started ? Date.parse(started) / 1000 : 0;
    return told.flatMap((item): Mark[] => {
      const time = Date.parse(item.timestamp) / 1000;
      const x = axis === "time" ? time : axis === "relative" ? time - origin : axis === "step" ? item.step : undefined;
      return typeof x === "number" && Number.isFinite(x) ? [{ x, severity: item.severity, text: item.text }] : [];
    });
  }, [told, axis, started]);
}

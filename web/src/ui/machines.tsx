// The machines of `serve --host`, as they answered last.
import { useEffect, useState } from "preact/hooks";
import { about, source } from "../data/page.ts";
import type { Machines } from "../data/types.ts";
import { troubleOf } from "../logic/machines.ts";
import { Link } from "./parts.tsx";

const AGAIN_MS = 2000;

export function hasMachines(): boolean {
  return (about.value?.machines.length ?? 0) > 0;
}

export function useMachines(): [Machines | null, Error | null] {
  const [found, setFound] = useState<Machines | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    if (!hasMachines()) return;
    let current = true;
    let timer = 0;
    const look = async () => {
      try {
        const answer = await source.value!.machines();
        if (current) setFound(answer), setError(null);
      } catch (problem) {
        if (current) setError(problem as Error);
      }
      if (current) timer = window.setTimeout(() => void look(), AGAIN_MS);
    };
    void look();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, []);
  return [found, error];
}

// In a list of runs: which machines it may lack something of.
export function MachineTrouble() {
  const [found] = useMachines();
  const silent = (found?.machines ?? []).filter((machine) => machine.state !== "up");
  if (!found || !silent.length) return null;
  return (
    <p class="machine-trouble" role="status">
      {silent.map((machine) => <span key={machine.name}><Link to={{ page: "machines", run: null, query: new Map() }}>{machine.name}</Link> is {troubleOf(machine, found.now)}</span>)}
    </p>
  );
}

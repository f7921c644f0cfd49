import { panels, run, setQuery, usePageRoute } from "../data/page.ts";
import { first } from "../logic/route.ts";
import { GpuGrid } from "../ui/gpus.tsx";
import { useMarks } from "../ui/marks.ts";
import { namesOf, PanelChart } from "../ui/panel.tsx";
import { StatesChart } from "../ui/states.tsx";
import { Choice, Empty, Section, smoothingOf } from "../ui/parts.tsx";

const GROUPS = ["gpu", "system", "process"];
const PHASES = ["step_phases", "throughput", "step_time", "loss"];

export function System() {
  const route = usePageRoute();
  const known = run.value!;
  const axis = first(route, "x") ?? "time";
  const spread = (first(route, "lines") ?? "auto") as "auto" | "band" | "lines";
  const detail = first(route, "detail") ?? "2";
  const marks = useMarks(axis);
  const all = panels.value?.panels ?? [];
  const groups = GROUPS.map((id) => ({
    id,
    title: panels.value?.groups.find((group) => group.id === id)?.title ?? id,
    panels: all.filter((panel) => panel.group === id && panel.chart !== "states" && panel.importance <= Number(detail) && namesOf(panel).length),
    states: known.tables[id] ? all.filter((panel) => panel.group === id && panel.chart === "states") : [],
  })).filter((group) => group.panels.length);
  // Training charts on the same time axis, to relate the hardware to what it was used for.
  const phases = PHASES.flatMap((id) => all.filter((panel) => panel.id === id && namesOf(panel).length)).slice(0, 3);
  if (!groups.length) {
    return (
      <Empty title="No hardware metrics">
        <p>The agent samples GPUs, CPU, memory, disk and network while a run is active. It was disabled or could not start.</p>
        <p>Run <code>trainvitals doctor</code> to check your setup.</p>
      </Empty>
    );
  }
  return (
    <>
      <div class="controls">
        <Choice label="x" value={axis} options={[["time", "time"], ["relative", "time since start"]]} onChange={(value) => setQuery({ x: value })} />
        <Choice label="lines" value={spread} options={[["auto", "auto"], ["band", "min, mean, max"], ["lines", "one per device"]]} onChange={(value) => setQuery({ lines: value })} />
        <Choice label="charts" value={detail} options={[["1", "key charts"], ["2", "default"], ["3", "all"]]} onChange={(value) => setQuery({ detail: value })} />
      </div>
      {groups.map((group) => (
        <Section key={group.id} title={group.title} note={group.id === "gpu" && known.simulated ? "simulated" : undefined}>
          {group.id === "gpu" && <GpuGrid />}
          <div class="charts">
            {group.panels.map((panel) => <PanelChart key={panel.id} panel={panel} axis={axis} spread={spread} marks={marks} height={170} />)}
          </div>
          {group.states.map((panel) => <StatesChart key={panel.id} panel={panel} axis={axis} />)}
        </Section>
      ))}
      {phases.length > 0 && (
        <Section title="Training over the same period">
          <div class="charts">{phases.map((panel) => <PanelChart key={panel.id} panel={panel} axis={axis} smoothing={smoothingOf(route)} marks={marks} height={170} />)}</div>
        </Section>
      )}
    </>
  );
}

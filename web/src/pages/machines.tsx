import { formatCount, formatValue } from "../logic/format.ts";
import { reasonOf, remarkOf } from "../logic/machines.ts";
import type { GpuNow, MachineNow } from "../data/types.ts";
import { type Gpu, GpuCards } from "../ui/gpus.tsx";
import { useMachines } from "../ui/machines.tsx";
import { Empty, Fact, Link, Loading, Problem, Section } from "../ui/parts.tsx";

export function Machines() {
  const [found, error] = useMachines();
  if (error && !found) return <main class="page" id="main"><Problem error={error} /></main>;
  if (!found) return <main class="page" id="main"><Loading /></main>;
  if (!found.machines.length) {
    return (
      <main class="page" id="main">
        <Empty title="No other machines">
          <p>This server shows the runs of one machine. To show several:</p>
          <pre class="text" tabIndex={0}>trainvitals serve --host gpu1 --host gpu2</pre>
        </Empty>
      </main>
    );
  }
  return (
    <main class="page" id="main" tabIndex={-1}>
      {error && <Problem error={error} />}
      {found.machines.map((machine) => <OneMachine key={machine.name} machine={machine} now={found.now} />)}
    </main>
  );
}

const TONES: Record<string, string> = { up: "good", connecting: "", slow: "warning" };

function OneMachine({ machine, now }: { machine: MachineNow; now: number }) {
  const reason = reasonOf(machine, now);
  const remark = remarkOf(machine);
  const whole = machine.gpus.filter((gpu) => !gpu.index.includes(":"));
  const failing = machine.gpus.filter((gpu) => gpu.problem);
  return (
    <Section
      title={machine.name}
      note={<><span class={`machine-state ${TONES[machine.state] ?? "critical"}`}>{machine.state}</span>{machine.host && machine.host !== machine.name && ` ${machine.host}`}{machine.version && `, trainvitals ${machine.version}`}</>}
      actions={machine.runs !== null && <Link to={{ page: "runs", run: null, query: new Map([["machine", [machine.name]]]) }}>{formatCount(machine.runs, "run")}</Link>}
    >
      {reason && <div class="problem" role="alert"><b>{reason}</b>{machine.hint && <span>{machine.hint}</span>}</div>}
      {remark && <p class="note">{remark}</p>}
      {machine.heard !== null && <div class={`facts ${machine.current ? "" : "old"}`}>
        <Fact title="GPUs" value={whole.length || "–"} note={failing.length ? `${failing.length} not ok` : undefined} tone={failing.length ? "warning" : undefined} />
        <Fact title="GPU use" value={formatValue(machine.utilization_percent, "%")} />
        <Fact title="GPU memory" value={formatValue(machine.memory_used_mb, "MB")} note={machine.memory_total_mb === null ? undefined : `of ${formatValue(machine.memory_total_mb, "MB")}`} />
        <Fact title="GPU power" value={formatValue(machine.power_draw_watts, "W")} />
        <Fact title="CPU" value={formatValue(machine.values.cpu_usage_percent, "%")} />
        <Fact title="memory" value={formatValue(machine.values.memory_used_mb, "MB")} note={machine.values.memory_total_mb === undefined ? undefined : `of ${formatValue(machine.values.memory_total_mb, "MB")}`} />
        <Fact title="active runs" value={machine.live} />
        <Fact title="alerts" value={machine.firing} tone={machine.firing ? "warning" : undefined} />
      </div>}
      {machine.gpus.length > 0 && <div class={machine.current ? "" : "old"}><GpuCards gpus={machine.gpus.map(gpuOf)} /></div>}
      {failing.map((gpu) => <p class="note warning" key={gpu.index}>GPU {gpu.index}: {gpu.problem}</p>)}
    </Section>
  );
}

function gpuOf(gpu: GpuNow): Gpu {
  return {
    id: gpu.index,
    title: `GPU ${gpu.index}`,
    labels: { gpu_index: gpu.index, gpu_name: gpu.name },
    values: new Map(Object.entries(gpu.values)),
    history: null,
  };
}

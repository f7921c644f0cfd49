// How a policy learns from its own responses, and where the time of a step goes.
import { panels, run, setQuery, usePageRoute } from "../data/page.ts";
import { formatClock, formatPercent, formatValue, toNumber } from "../logic/format.ts";
import { SAMPLES } from "../logic/media.ts";
import { first } from "../logic/route.ts";
import { useMarks } from "../ui/marks.ts";
import { namesOf, PanelChart, spelling } from "../ui/panel.tsx";
import { Choice, Empty, Fact, Section, Smoothing, smoothingOf } from "../ui/parts.tsx";
import { FindingList, useDiagnosis } from "./findings.tsx";
import { Card, useMedia } from "./media.tsx";

// Runs without these metrics have no such page.
export function hasRl(): boolean {
  return panels.value?.panels.some((panel) => panel.group === "rl" && namesOf(panel).length > 0) ?? false;
}

export function Rl() {
  const route = usePageRoute();
  const known = run.value!;
  const axis = first(route, "x") ?? "step";
  const smoothing = smoothingOf(route);
  const marks = useMarks(axis);
  const [diagnosis] = useDiagnosis(known);
  const findings = diagnosis?.findings.filter((item) => item.rule.startsWith("rl.")) ?? [];
  const shown = (panels.value?.panels ?? []).filter((panel) => panel.group === "rl" && namesOf(panel).length);
  const waiting = panels.value?.panels.find((panel) => panel.id === "process_gpu_waiting" && namesOf(panel).length);
  if (!shown.length) {
    return (
      <Empty title="No reinforcement learning here">
        <p>Rewards, entropy and response lengths of verl, TRL, OpenRLHF, prime-rl, NeMo RL and AReaL appear on this page.</p>
      </Empty>
    );
  }
  return (
    <>
      <div class="controls">
        <Choice label="x" value={axis} options={[["step", "step"], ["time", "time"], ["relative", "time since start"]]} onChange={(value) => setQuery({ x: value, zx: undefined, from: undefined, to: undefined })} />
        <Smoothing value={smoothing} />
      </div>
      <Facts />
      {findings.length > 0 && <Section title="Findings" note={`${findings.length}`}><FindingList findings={findings} runKey={known.key} /></Section>}
      <div class="charts">
        {shown.map((panel, at) => <PanelChart key={panel.id} panel={panel} axis={axis} smoothing={smoothing} marks={marks} height={210} atTop={at < 4} />)}
        {waiting && <PanelChart panel={{ ...waiting, title: "Waiting GPUs by role" }} axis={axis === "step" ? "relative" : axis} height={210} spread="band" />}
      </div>
      <Samples />
    </>
  );
}

// Responses with their scores, where the framework hands them over.
function Samples() {
  const known = run.value!;
  const [answer] = useMedia(known);
  const groups = answer?.groups.filter((group) => group.kind === "table" && SAMPLES.includes(group.name)) ?? [];
  if (!groups.length) return null;
  return (
    <Section title="Responses">
      <div class="media-grid wide">
        {groups.map((group) => <Card key={group.name} group={group} runKey={known.key} wanted={undefined} state={known} />)}
      </div>
    </Section>
  );
}

function Facts() {
  const metric = (name: string) => {
    const found = spelling("training", name);
    return run.value!.metrics.find((item) => item.name === found);
  };
  const share = (name: string) => {
    const last = toNumber(metric(name)?.last ?? null);
    return last !== null && Number.isFinite(last) ? formatPercent(last) : "–";
  };
  const busy = run.value!.live ? run.value!.ranks.find((rank) => rank.alive && rank.phase) : undefined;
  const reward = metric("rl_reward");
  const validation = metric("rl_validation_reward");
  const entropy = metric("rl_entropy");
  const kl = metric("rl_kl");
  const length = metric("rl_response_length");
  return (
    <div class="facts">
      {busy && <Fact title="phase" value={busy.phase!} note={`since ${formatClock(busy.phase_since, true)}`} />}
      {reward && <Fact title="reward" value={formatValue(reward.last)} note={`max ${formatValue(reward.high)}`} />}
      {validation && <Fact title="validation" value={formatValue(validation.last)} note={`max ${formatValue(validation.high)}`} />}
      {entropy && <Fact title="entropy" value={formatValue(entropy.last)} note={`max ${formatValue(entropy.high)}`} />}
      {kl && <Fact title="KL" value={formatValue(kl.last)} note={`max ${formatValue(kl.high)}`} />}
      {length && <Fact title="response length" value={formatValue(length.last)} note={`max ${formatValue(length.high)}`} />}
      {metric("rl_truncated") && <Fact title="truncated" value={share("rl_truncated")} />}
      {metric("rl_dead_groups") && <Fact title="dead groups" value={share("rl_dead_groups")} />}
    </div>
  );
}

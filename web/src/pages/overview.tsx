import { useState } from "preact/hooks";
import { now, panels, run, source, usePageRoute } from "../data/page.ts";
import type { AlertRow, Cost, Rank, Run, Value } from "../data/types.ts";
import { formatAgo, formatClock, formatEnergy, formatPercent, formatSeconds, formatShort, formatSpan, formatValue, toNumber } from "../logic/format.ts";
import { participantTitle } from "../logic/metrics.ts";
import { TopFindings } from "./findings.tsx";
import { Attempts, RunDetails } from "../ui/details.tsx";
import { canEdit, Notes } from "../ui/edit.tsx";
import { GpuGrid } from "../ui/gpus.tsx";
import { useMarks } from "../ui/marks.ts";
import { namesOf, ownPanel, PanelChart, spelling } from "../ui/panel.tsx";
import { Patch } from "../ui/patch.tsx";
import { Empty, Fact, Link, runRoute, Section, Smoothing, smoothingOf } from "../ui/parts.tsx";
import { Table } from "../ui/table.tsx";

export function Overview() {
  const known = run.value!;
  const smoothing = smoothingOf(usePageRoute());
  const training = known.tables.training?.names ?? [];
  const there = (panels.value?.panels ?? []).filter((panel) => panel.importance === 1 && namesOf(panel).length);
  const own = there.some((panel) => panel.table === "training") ? [] : training.slice(0, 6).map((name) => ownPanel(name));
  const hasSteps = training.length > 0;
  const marks = useMarks("step");
  const nothing = !there.length && !own.length;
  return (
    <>
      <Health known={known} />
      <Facts known={known} />
      <Notes known={known} />
      <div class="troubles">
        <OpenAlerts known={known} />
        <TopFindings known={known} />
      </div>
      {nothing && (
        <Empty title="No data yet">
          <p>{known.live ? "Charts appear here with the first logged step or hardware sample." : "This run ended before anything was logged."}</p>
          <p><code>trainvitals.log(step=step, loss=loss)</code></p>
        </Empty>
      )}
      {!nothing && (
        <Section title="Charts" actions={hasSteps && <Smoothing value={smoothing} />}>
          <div class="charts">
            {[...own, ...there].slice(0, 8).map((panel, at) => (
              <PanelChart key={panel.id} panel={panel} axis={panel.table === "training" && hasSteps ? "step" : "time"} smoothing={smoothing} marks={panel.table === "training" ? marks : undefined} height={210} atTop={at < 2} />
            ))}
          </div>
        </Section>
      )}
      {known.tables.gpu && (
        <Section title="GPUs" note={known.simulated ? "simulated" : undefined} actions={<Link to={runRoute(known.key, "system")}>full system view</Link>}>
          <GpuGrid />
        </Section>
      )}
      <Ranks known={known} />
      <Attempts attempts={known.attempts} />
      <RunDetails known={known} />
      <Patch known={known} />
    </>
  );
}

function Health({ known }: { known: Run }) {
  const { health, progress } = known;
  return (
    <div class={`health ${health.severity}`} role="status">
      <div class="health-word"><i aria-hidden="true" />{health.word}</div>
      <div class="health-why">
        {health.reason && <span>{health.reason}</span>}
        {health.advice && <span class="advice">{health.advice}</span>}
      </div>
      {progress.share !== null && (
        <div class="progress">
          <progress value={progress.share} max={1} aria-label="progress" />
          <span>{formatPercent(progress.share)}{progress.seconds_left !== null && ` · ${formatSpan(progress.seconds_left)} left, ends ${formatClock(new Date(Date.now() + progress.seconds_left * 1000).toISOString())}`}</span>
        </div>
      )}
      {known.live && canEdit() && <Stop known={known} />}
    </div>
  );
}

function Stop({ known }: { known: Run }) {
  const [said, setSaid] = useState("");
  const ask = () => {
    if (!confirm(`Stop ${known.name}? Its program gets a chance to save and exit.`)) return;
    setSaid("stopping…");
    source.value!.stop(known.key).catch((error: Error) => setSaid(error.message));
  };
  return said ? <span class="dim" role="status">{said}</span> : <button type="button" class="danger" onClick={ask}>stop</button>;
}

function costNote(cost: Cost): string {
  const parts: [number | null, string][] = [[cost.per_epoch, "per epoch"], [cost.per_loss_percent, "per 1 % of the loss"], [cost.to_finish, "to finish"]];
  return [`of ${cost.of}`, ...parts.flatMap(([amount, what]) => (amount === null ? [] : [`${amount.toFixed(2)} ${what}`])), ...(cost.basis ? [cost.basis] : [])].join("; ");
}

function short(value: Value): string {
  const number = toNumber(value);
  return number !== null && Number.isFinite(number) && Math.abs(number) >= 1e6 ? formatShort(number) : formatValue(value);
}

const SHOWN_JOBS = ["Slurm job", "PBS job", "LSF job", "Ray job", "pod"];

function Facts({ known }: { known: Run }) {
  const metric = (name: string) => {
    const logged = spelling("training", name);
    return known.metrics.find((item) => item.name === logged);
  };
  const loss = metric("loss");
  const reward = metric("rl_reward");
  const validation = metric("validation_loss");
  const accuracy = metric("accuracy");
  const validated = metric("validation_accuracy");
  const samples = metric("throughput_samples_per_sec");
  const tokens = metric("throughput_tokens_per_sec");
  const norm = metric("gradient_norm");
  const rate = metric("learning_rate");
  const epoch = metric("epoch");
  const total = known.progress.total_steps;
  const isTraining = known.kind !== "benchmark"; // whose rounds are no steps
  return (
    <div class="facts">
      {isTraining && <Fact title="step" value={known.step === null ? "–" : known.step.toLocaleString("en-US")} note={total ? `of ${total.toLocaleString("en-US")}` : epoch ? `epoch ${formatValue(epoch.last)}` : undefined} />}
      {loss && <Fact title="loss" value={formatValue(loss.last)} note={loss.low !== null ? `min ${formatValue(loss.low)}` : undefined} tone={typeof loss.last === "string" ? "critical" : ""} />}
      {validation && <Fact title="val loss" value={formatValue(validation.last)} note={validation.low !== null ? `min ${formatValue(validation.low)}` : undefined} tone={typeof validation.last === "string" ? "critical" : ""} />}
      {reward && <Fact title="reward" value={formatValue(reward.last)} note={`max ${formatValue(reward.high)}`} />}
      {accuracy && <Fact title="accuracy" value={formatValue(accuracy.last)} note={`max ${formatValue(accuracy.high)}`} />}
      {validated && <Fact title="val accuracy" value={formatValue(validated.last)} note={`max ${formatValue(validated.high)}`} />}
      {norm && <Fact title="gradient norm" value={formatValue(norm.last)} note={`max ${formatValue(norm.high)}`} />}
      {rate && <Fact title="learning rate" value={formatValue(rate.last)} />}
      {samples && <Fact title="samples / s" value={short(samples.last)} note={`max ${short(samples.high)}`} />}
      {tokens && <Fact title="tokens / s" value={short(tokens.last)} note={`max ${short(tokens.high)}`} />}
      {isTraining && <Fact title="step time" value={known.step_seconds === null ? "–" : formatSeconds(known.step_seconds)} />}
      <Fact title={known.live ? "running for" : "duration"} value={formatSpan(known.seconds)} note={known.attempt > 1 ? `in ${known.attempt} attempts` : known.live ? `since ${formatClock(known.started)}` : formatClock(known.started)} />
      {known.job_facts.filter(([title]) => SHOWN_JOBS.includes(title)).map(([title, text]) => {
        const [value, ...note] = text.split(", ");
        return <Fact key={title} title={title} value={value} note={note.join(", ") || undefined} />;
      })}
      {known.energy_joules !== null && <Fact title="GPU energy" value={formatEnergy(known.energy_joules)} note={known.simulated ? "simulated" : undefined} />}
      {known.cost && <Fact title={known.live ? "cost so far" : "cost"} value={`${known.cost.amount.toFixed(2)} ${known.cost.currency}`} note={costNote(known.cost)} />}
      {known.co2_kg !== null && <Fact title={known.live ? "CO₂ so far" : "CO₂"} value={`${formatValue(known.co2_kg)} kg`} note="of the GPUs' energy" />}
      {known.damage.torn + known.damage.foreign > 0 && (
        <Fact title="unreadable lines" value={known.damage.torn + known.damage.foreign} note="in the run folder" tone="warning" />
      )}
      {known.damage.files > 0 && (
        <Fact title="unreadable files" value={known.damage.files} note={`trainvitals runs check ${known.id}`} tone="warning" />
      )}
    </div>
  );
}

function OpenAlerts({ known }: { known: Run }) {
  const { firing } = known;
  if (!firing.length) return null;
  return (
    <Section title="Active alerts" note={`${firing.length}`} actions={<Link to={runRoute(known.key, "alerts")}>all alerts</Link>}>
      <ul class="alert-list">
        {byRule(firing).slice(0, 5).map(([alert, others]) => (
          <li key={alert.rule} class={alert.severity}>
            <b>{alert.rule}</b><span>{alert.message}{others > 0 && <span class="dim"> and {others} more</span>}</span><time title={alert.timestamp}>{formatAgo(alert.since ?? alert.timestamp, now.value)}</time>
            {alert.advice && <em>{alert.advice}</em>}
          </li>
        ))}
      </ul>
    </Section>
  );
}

// Eight hot GPUs are one line.
export function byRule(firing: AlertRow[]): [AlertRow, number][] {
  const found = new Map<string, [AlertRow, number]>();
  for (const alert of firing) {
    const known = found.get(alert.rule ?? "");
    if (known) known[1]++;
    else found.set(alert.rule ?? "", [alert, 0]);
  }
  return [...found.values()];
}

function Ranks({ known }: { known: Run }) {
  if (known.ranks.length < 2) return null;
  // Within a role: rollouts and trainers count different steps.
  const most = (role: string | undefined, pick: (rank: Rank) => number | undefined) =>
    Math.max(...known.ranks.filter((rank) => rank.role === role).map((rank) => pick(rank) ?? 0));
  const behind = (rank: Rank) => most(rank.role, (other) => other.step) - (rank.step ?? 0);
  const share = (rank: Rank) => (rank.step_seconds ?? 0) / (most(rank.role, (other) => other.step_seconds) || 1);
  return (
    <Section title="Ranks" note={`${known.ranks.length}`}>
      <Table
        columns={[{ title: "rank" }, { title: "host" }, { title: "state" }, { title: "step", right: true }, { title: "pace", head: <span title="wall-clock seconds per step, including the time between steps">pace</span>, right: true }, { title: "last logged" }]}
        rows={known.ranks.map((rank) => ({
          key: `${rank.host} ${rank.role} ${rank.rank}`,
          cells: [
            rank.role === undefined ? rank.rank : participantTitle(rank.role, rank.rank),
            rank.host,
            { show: <span class={`status ${rank.state}`}>{rank.state}</span> },
            { show: rank.step?.toLocaleString("en-US") ?? "–", class: behind(rank) > 2 ? "warning" : "" },
            { show: <><span class="cell-bar"><i style={{ width: `${share(rank) * 100}%` }} /></span><span class="bar-number">{rank.step_seconds ? formatSeconds(rank.step_seconds) : "–"}</span></> },
            formatClock(rank.last_log, true),
          ],
        }))}
      />
    </Section>
  );
}

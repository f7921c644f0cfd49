import { useEffect, useState } from "preact/hooks";
import { alertsRound, now, refreshRun, run, source } from "../data/page.ts";
import type { AlertRow, Alerts as Answer } from "../data/types.ts";
import { formatAgo, formatClock, formatValue } from "../logic/format.ts";
import { gpuTitle, participantTitle } from "../logic/metrics.ts";
import { canEdit, EditHint } from "../ui/edit.tsx";
import { Choice, Empty, Loading, Problem, Section } from "../ui/parts.tsx";
import { Table } from "../ui/table.tsx";

export function Alerts() {
  const key = run.value!.key;
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let current = true;
    source.value!.alerts(key).then((found) => current && (setAnswer(found), setError(null)), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [key, alertsRound.value, round]);
  const ask = (action: "ack" | "silence", rule: string, seconds: number) => {
    source.value!.controlAlert(key, action, rule, seconds).then(
      () => setTimeout(() => (setRound(round + 1), void refreshRun()), 1200),
      setError,
    );
  };
  if (error && !answer) return <Problem error={error} />;
  if (!answer) return <Loading />;
  if (!answer.total && !answer.firing.length) {
    return (
      <Empty title={run.value!.live ? "No alerts so far" : "No alerts"}>
        <p>Rules for hardware, loss, gradients and stalls are checked while the run is active. List them with <code>trainvitals alerts list</code>.</p>
      </Empty>
    );
  }
  return (
    <>
      {error && <Problem error={error} />}
      <Section title="Active" note={`${answer.firing.length}`}>
        {answer.firing.length === 0 && <p class="note">No active alerts.</p>}
        <div class="cards">{answer.firing.map((alert) => <Card key={identify(alert)} alert={alert} onAsk={canEdit() ? ask : undefined} />)}</div>
        {answer.firing.length > 0 && <EditHint what="acknowledge and silence alerts" />}
      </Section>
      <Section title="History" note={`${answer.total}`}>
        <Table
          columns={[
            { title: "time" }, { title: "state" }, { title: "severity" }, { title: "rule" }, { title: "device" }, { title: "message", wide: true },
            { title: "value", right: true }, { title: "threshold", right: true }, { title: "step", right: true },
          ]}
          rows={answer.history.map((alert, at) => ({
            key: String(at),
            cells: [
              { show: <time title={alert.timestamp}>{formatClock(alert.timestamp, true)}</time> }, alert.state === "resolved" && alert.reason ? "ended with the run" : alert.state, { show: <span class={`badge ${alert.severity ?? ""}`}>{alert.severity}</span> },
              alert.rule, subject(alert), alert.message ?? alert.reason, show(alert.value), show(alert.threshold), alert.step?.toLocaleString("en-US"),
            ],
          }))}
        />
      </Section>
      {answer.deliveries.length > 0 && (
        <Section title="Notifications and actions" note={`${answer.deliveries.length}`}>
          <Table
            columns={[{ title: "time" }, { title: "action" }, { title: "channel" }, { title: "result", wide: true }]}
            rows={answer.deliveries.map((row, at) => ({
              key: String(at),
              cells: [formatClock(row.timestamp, true), `${row.action ?? row.kind ?? "message"} ${row.rule ?? ""}`, row.channel ?? "", row.result ?? ""],
            }))}
          />
        </Section>
      )}
    </>
  );
}

function identify(alert: AlertRow): string {
  return `${alert.rule} ${JSON.stringify(alert.labels ?? {})}`;
}

function subject(alert: AlertRow): string {
  const labels = alert.labels ?? {};
  const parts: string[] = [];
  if (labels.host !== undefined) parts.push(String(labels.host));
  if (labels.gpu_index !== undefined) parts.push(gpuTitle(labels));
  if (labels.rank !== undefined) parts.push(participantTitle(labels.role, labels.rank));
  return parts.join(" ");
}

function show(value: unknown): string {
  return typeof value === "number" ? formatValue(value) : String(value ?? "");
}

const SPANS = [["900", "15 min"], ["3600", "1 h"], ["28800", "8 h"], ["86400", "1 d"]] as const;

function Card({ alert, onAsk }: { alert: AlertRow; onAsk?: (action: "ack" | "silence", rule: string, seconds: number) => void }) {
  const [span, setSpan] = useState<string>("3600");
  return (
    <article class={`alert-card ${alert.severity ?? ""}`}>
      <header>
        <span class={`badge ${alert.severity ?? ""}`}>{alert.severity}</span><b>{alert.rule}</b><span class="dim">{subject(alert)}</span>
        {alert.silenced ? <span class="badge">silenced</span> : null}
        {alert.acknowledged ? <span class="badge">acknowledged</span> : null}
        <time title={alert.since ?? alert.timestamp}>{formatAgo(alert.since ?? alert.timestamp, now.value)}</time>
      </header>
      <p>{alert.message}</p>
      {alert.advice && <p class="advice">{alert.advice}</p>}
      <dl>
        {alert.when && <><dt>rule</dt><dd><code>{alert.when}</code></dd></>}
        {alert.value !== undefined && <><dt>value</dt><dd>{show(alert.value)}{alert.threshold !== undefined && `, threshold ${show(alert.threshold)}`}</dd></>}
        {Object.entries(alert.values ?? {}).filter(([name]) => name !== "step" || alert.step === undefined).map(([name, value]) => <><dt>{name}</dt><dd>{show(value)}</dd></>)}
        {alert.step !== undefined && <><dt>step</dt><dd>{alert.step.toLocaleString("en-US")}</dd></>}
      </dl>
      {onAsk && alert.rule && (
        <footer>
          {!alert.acknowledged && <button type="button" onClick={() => onAsk("ack", alert.rule!, 1)}>acknowledge</button>}
          <button type="button" onClick={() => onAsk("silence", alert.rule!, Number(span))}>silence for</button>
          <Choice quiet label="silence duration" value={span} options={SPANS} onChange={setSpan} />
        </footer>
      )}
    </article>
  );
}

// What is wrong with a run, why, and what to do; which checks passed, and which were skipped.
import { useEffect, useState } from "preact/hooks";
import { run, source } from "../data/page.ts";
import type { Diagnosis, Finding, Resource, Run } from "../data/types.ts";
import { formatClock, formatCount, formatValue } from "../logic/format.ts";
import { shortName } from "../logic/metrics.ts";
import { byMetric } from "../logic/resources.ts";
import type { Route } from "../logic/route.ts";
import { Empty, Link, Loading, Problem, runRoute, Section } from "../ui/parts.tsx";
import { Table } from "../ui/table.tsx";

const AGAIN_MS = 30_000;
const LATER_MS = 1200; // on the overview the charts come first

export function useDiagnosis(known: Run, wait = 0): [Diagnosis | null, Error | null] {
  const [found, setFound] = useState<Diagnosis | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let current = true;
    const ask = () => source.value!.diagnosis(known.key).then((answer) => current && (setFound(answer), setError(null)), (problem) => current && setError(problem));
    const timer = setTimeout(ask, source.value!.isLive ? wait : 0);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [known.key, known.live, round]);
  useEffect(() => {
    if (!known.live || !source.value!.isLive) return;
    const timer = setInterval(() => document.visibilityState === "visible" && setRound((value) => value + 1), AGAIN_MS);
    return () => clearInterval(timer);
  }, [known.live]);
  return [found, error];
}

export function Findings() {
  const known = run.value!;
  const [found, error] = useDiagnosis(known);
  if (error && !found) return <Problem error={error} />;
  if (!found) return <Loading />;
  return (
    <>
      <Section title="Findings" note={found.from_step === null ? countFindings(found.findings) : `from step ${found.from_step.toLocaleString("en-US")} on`}>
        {found.findings.length ? <FindingList findings={found.findings} runKey={known.key} /> : (
          <Empty title={found.fine.length ? "No problems found" : "Not enough data yet"}><p>{formatCount(found.fine.length, "check")} passed, {found.not_judged.length} skipped (missing data).</p></Empty>
        )}
      </Section>
      {found.resources.length > 0 && (
        <Section title="Resource usage" note={found.resources.some((row) => row.simulated) ? "over the whole run; GPUs simulated" : "over the whole run"}>
          <Resources rows={found.resources} />
        </Section>
      )}
      {found.fine.length > 0 && <Section title="Checks passed" note={`${found.fine.length}`}><ul class="plain-list">{found.fine.map((title) => <li key={title}>{title}</li>)}</ul></Section>}
      {found.not_judged.length > 0 && (
        <Section title="Checks skipped" note={`${found.not_judged.length}`}>
          <Table columns={[{ title: "check" }, { title: "needs", wide: true }]} rows={found.not_judged.map((gap) => ({ key: gap.rule, cells: [gap.title, { show: gap.needs, class: "dim" }] }))} />
        </Section>
      )}
    </>
  );
}

export function FindingList({ findings, runKey }: { findings: Finding[]; runKey: string }) {
  return (
    <ul class="findings">
      {findings.map((item, at) => (
        <li key={at} class={item.cause === null ? item.severity : `${item.severity} follows`}>
          <b>{item.title}</b>
          <span class="finding-rest">
            <span class={`badge ${item.severity}`}>{item.severity}</span>{" "}
            {item.step !== null && <Link to={around(runKey, item.step)}>step {item.step.toLocaleString("en-US")}</Link>}
            {item.step === null && item.time !== null && <time>{formatClock(new Date(item.time * 1000).toISOString())}</time>}
            {item.named_at !== null && item.named_at !== item.step && <span class="dim"> known at step {item.named_at.toLocaleString("en-US")}</span>}
          </span>
          <ul>
            {item.evidence.map((line) => <li key={line}>{line}</li>)}
            {item.cause !== null && <li>follows from: {titleOf(item.cause, findings)}</li>}
          </ul>
          <em>{item.advice} <code>{item.rule}</code></em>
        </li>
      ))}
    </ul>
  );
}

function countFindings(findings: Finding[]): string {
  const count = (severity: string) => findings.filter((item) => item.severity === severity).length;
  return ["critical", "warning", "info"].flatMap((severity) => (count(severity) ? [`${count(severity)} ${severity}`] : [])).join(", ");
}

// A cause that is not among those shown is named by its rule.
function titleOf(rule: string, findings: Finding[]): string {
  return findings.find((item) => item.rule === rule)?.title ?? rule;
}

// The training around a step.
function around(runKey: string, step: number): Route {
  const width = Math.max(Math.round((run.value?.step ?? step) / 20), 20);
  return runRoute(runKey, "training", [["zx", "step"], ["from", String(Math.max(step - width, 0))], ["to", String(step + width)]]);
}

// The worst three on the overview, with a link to the rest.
export function TopFindings({ known }: { known: Run }) {
  const [found] = useDiagnosis(known, LATER_MS);
  const worth = (found?.findings ?? []).filter((item) => item.severity !== "info");
  if (!worth.length) return null;
  return (
    <Section title="Findings" note={countFindings(found!.findings)} actions={<Link to={runRoute(known.key, "findings")}>all findings</Link>}>
      <FindingList findings={worth.slice(0, 3)} runKey={known.key} />
    </Section>
  );
}

const TABLES: Record<string, string> = { gpu: "GPU", system: "host", process: "process" };

function Resources({ rows }: { rows: Resource[] }) {
  const numbers = ["min", "mean", "median", "p95", "max"].map((title) => ({ title, right: true }));
  return (
    <Table
      columns={[{ title: "metric" }, { title: "device" }, ...numbers]}
      rows={byMetric(rows).map((row) => ({
        key: `${row.table} ${row.metric} ${row.subject}`,
        cells: [
          { show: `${TABLES[row.table] ?? row.table} ${shortName(row.metric)}`, class: "first", hint: row.metric },
          { show: <>{row.subject} {row.simulated && <span class="badge warning">simulated</span>}</> },
          ...[row.low, row.mean, row.median, row.p95, row.high].map((value) => formatValue(value, row.unit)),
        ],
      }))}
    />
  );
}

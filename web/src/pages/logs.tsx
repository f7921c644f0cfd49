import { useEffect, useState } from "preact/hooks";
import { newEvents, run, setQuery, source, usePageRoute } from "../data/page.ts";
import type { Event, Events, TextFile } from "../data/types.ts";
import { formatClock } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { Choice, Empty, Json, Problem, Search, Section } from "../ui/parts.tsx";

const SEVERITIES = [["", "all"], ["warning", "warnings and worse"], ["critical", "critical"]] as const;

export function Logs() {
  const route = usePageRoute();
  const known = run.value!;
  const text = first(route, "q") ?? "";
  const severity = first(route, "severity") ?? "";
  const [answer, setAnswer] = useState<Events | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.events(known.key).then((found) => current && setAnswer(found), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [known.key, newEvents.value.length]);
  if (error && !answer) return <Problem error={error} />;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = (answer?.events ?? []).filter((row) => fits(row, severity) && words.every((word) => JSON.stringify(row).toLowerCase().includes(word)));
  return (
    <>
      <div class="controls">
        <Search label="search events" placeholder="search events   /" value={text} onInput={(value) => setQuery({ q: value || undefined }, true)} />
        <Choice label="severity" value={severity} options={SEVERITIES} onChange={(value) => setQuery({ severity: value || undefined })} />
      </div>
      <Section title="Events" note={answer ? `${rows.length} of ${answer.total}` : ""}>
        {answer && !answer.total ? <Empty title="Nothing happened yet"><p>Checkpoints, resumes, stalls and what you say with <code>run.event(…)</code> are listed here.</p></Empty> : (
          <div class="table-box">
            <table class="events">
              <thead><tr><th>time</th><th>severity</th><th>event</th><th>message</th><th class="right">step</th><th>correlation id</th></tr></thead>
              <tbody>{rows.slice(0, 500).map((row, at) => <Line key={`${row.timestamp} ${at}`} row={row} />)}</tbody>
            </table>
          </div>
        )}
      </Section>
      {known.consoles.length > 0 && <Texts runKey={known.key} kind="console" title="Console" names={known.consoles} />}
      {known.stacks.length > 0 && <Texts runKey={known.key} kind="stacks" title="Stacks" names={known.stacks} />}
    </>
  );
}

function fits(row: Event, severity: string): boolean {
  if (!severity) return true;
  return row.severity === "critical" || (severity === "warning" && row.severity === "warning");
}

function Line({ row }: { row: Event }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <tr class={row.severity ?? ""}>
        <td><time title={row.timestamp}>{formatClock(row.timestamp, true)}</time></td>
        <td><span class={`badge ${row.severity ?? ""}`}>{row.severity}</span></td>
        <td><button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>{row.event}</button></td>
        <td class="wide">{row.message}</td>
        <td class="right">{row.step?.toLocaleString("en-US") ?? ""}</td>
        <td class="mono dim" title={row.correlation_id}>{row.correlation_id?.slice(0, 8)}</td>
      </tr>
      {open && <tr><td colSpan={6}><Json value={row} /></td></tr>}
    </>
  );
}

function Texts({ runKey, kind, title, names }: { runKey: string; kind: "stacks" | "console"; title: string; names: string[] }) {
  const [name, setName] = useState(names[names.length - 1]);
  const [file, setFile] = useState<TextFile | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.text(runKey, kind, name).then((found) => current && (setFile(found), setError(null)), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [runKey, kind, name]);
  return (
    <Section title={title} note={file?.cut ? "its end" : ""} actions={<Choice label="" value={name} options={names.map((item) => [item, item] as const)} onChange={setName} />}>
      {error ? <Problem error={error} /> : <pre class="text" tabIndex={0}>{file?.text}</pre>}
    </Section>
  );
}

import { useEffect, useState } from "preact/hooks";
import { eventsRound, run, setQuery, source, usePageRoute } from "../data/page.ts";
import type { EventRow, Events, TextPart } from "../data/types.ts";
import { formatClock } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { Console } from "../ui/console.tsx";
import { Choice, Empty, Json, Problem, Search, Section } from "../ui/parts.tsx";
import { Table, type TableRow } from "../ui/table.tsx";

const SHOWN = 50;
const MORE = 200;
const SEVERITIES = [["", "all"], ["warning", "warning and above"], ["critical", "critical"]] as const;

export function Logs() {
  const route = usePageRoute();
  const known = run.value!;
  const text = first(route, "q") ?? "";
  const severity = first(route, "severity") ?? "";
  const [answer, setAnswer] = useState<Events | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [limit, setLimit] = useState(SHOWN);
  const [open, setOpen] = useState<EventRow | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.events(known.key).then((found) => current && setAnswer(found), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [known.key, eventsRound.value]);
  if (error && !answer) return <Problem error={error} />;
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = (answer?.events ?? []).filter((row) => fits(row, severity) && words.every((word) => JSON.stringify(row).toLowerCase().includes(word)));
  return (
    <>
      <div class="controls">
        <Search label="search logs" placeholder="search console and events   /" value={text} onInput={(value) => setQuery({ q: value || undefined }, true)} />
        <Choice label="severity" value={severity} options={SEVERITIES} onChange={(value) => setQuery({ severity: value || undefined })} />
      </div>
      {known.consoles.length > 0 && <Console runKey={known.key} names={known.consoles} live={known.live} search={text} />}
      <Section title="Events" note={answer ? `${rows.length} of ${answer.total}` : ""}>
        {answer && !answer.total ? <Empty title="No events yet"><p>Checkpoints, resumes, stalls and your own <code>run.event(…)</code> calls are listed here.</p></Empty> : (
          <Table
            class="events"
            columns={[{ title: "time" }, { title: "severity" }, { title: "event" }, { title: "message", wide: true }, { title: "step", right: true }, { title: "correlation id" }]}
            rows={rows.slice(0, limit).map((row) => tableRow(row, open, setOpen))}
          />
        )}
        {rows.length > limit && <button type="button" class="more" onClick={() => setLimit(limit + MORE)}>show more ({(rows.length - limit).toLocaleString("en-US")} hidden)</button>}
      </Section>
      {known.stacks.length > 0 && <Stacks runKey={known.key} names={known.stacks} />}
    </>
  );
}

function fits(row: EventRow, severity: string): boolean {
  if (!severity) return true;
  return row.severity === "critical" || (severity === "warning" && row.severity === "warning");
}

function tableRow(row: EventRow, open: EventRow | null, setOpen: (row: EventRow | null) => void): TableRow {
  return {
    key: JSON.stringify(row),
    class: row.severity,
    cells: [
      { show: <time title={row.timestamp}>{formatClock(row.timestamp, true)}</time> },
      { show: <span class={`badge ${row.severity ?? ""}`}>{row.severity}</span> },
      { show: <button type="button" class="plain" aria-expanded={open === row} onClick={() => setOpen(open === row ? null : row)}>{row.event}</button> },
      row.message,
      row.step?.toLocaleString("en-US"),
      { show: row.correlation_id?.slice(0, 8), class: "mono dim", hint: row.correlation_id },
    ],
    below: open === row && <Json value={row} />,
  };
}

function Stacks({ runKey, names }: { runKey: string; names: string[] }) {
  const [name, setName] = useState(names[names.length - 1]);
  const [file, setFile] = useState<TextPart | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.text(runKey, "stacks", name).then((found) => current && (setFile(found), setError(null)), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [runKey, name]);
  return (
    <Section title="Stacks" note={file?.cut ? "end of the file" : "stack of every thread"} actions={<Choice quiet label="file with stacks" value={name} options={names.map((item) => [item, item] as const)} onChange={setName} />}>
      {error ? <Problem error={error} /> : <pre class="text" tabIndex={0}>{file?.text}</pre>}
    </Section>
  );
}

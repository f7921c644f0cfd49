import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { about, panels, refreshRuns, remember, remembered, runs, runsError, setQuery, source, usePageRoute } from "../data/page.ts";
import { go } from "../data/store.ts";
import { changeView, keptView } from "../data/view.ts";
import type { Row, Run } from "../data/types.ts";
import { formatClock, formatConfig, formatCount, formatSpan, formatValue } from "../logic/format.ts";
import { machineOf } from "../logic/machines.ts";
import { search } from "../logic/metrics.ts";
import { first, formatRoute } from "../logic/route.ts";
import { findUnknown, parseSearch } from "../logic/search.ts";
import { columnKind, columnName, columnTitles, compareCells, filterRows, groupRows, interesting, sortRows, type ColumnId } from "../logic/table.ts";
import { canEdit, EditHint, RunForm, TagForm } from "../ui/edit.tsx";
import { Icon } from "../ui/icons.tsx";
import { LongTable } from "../ui/long_table.tsx";
import { MachineTrouble } from "../ui/machines.tsx";
import { Menu } from "../ui/menu.tsx";
import { Choice, Empty, Link, Loading, Problem, runRoute, RunStatus, Search } from "../ui/parts.tsx";
import type { TableColumn, TableRow } from "../ui/table.tsx";
import { RunCharts } from "./run_charts.tsx";
import { RunSweep } from "./run_sweep.tsx";

const MOST_GROUPS = 50;
const USUAL_COLUMNS = 6;
const MOST_GROUPINGS = 60;
const VIEWS = [["", "Table"], ["charts", "Charts"], ["sweep", "Sweep"]] as const;
const NONE: Row[] = [];
const OWN_TITLES = ["select", "run", "status", "step", "time", "started", "project", "tags"];

export function Runs() {
  const route = usePageRoute();
  const answer = runs.value;
  const text = first(route, "q") ?? "";
  const status = first(route, "status") ?? "";
  const project = first(route, "project") ?? "";
  const view = source.value!.isLive ? (first(route, "view") ?? "") : "";
  const group = first(route, "group") ?? "";
  const machine = first(route, "machine") ?? "";
  const machines = about.value?.machines ?? [];
  const sort = first(route, "sort") ?? "-started";
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  // Each project has its own, kept with it; several together have theirs, in this browser.
  const columns = useSignal<ColumnId[] | null>(parseColumns(remembered("columns")));
  const keptIn = project || (answer?.projects.length === 1 ? answer.projects[0] : "");
  const kept = keptIn ? (keptView(keptIn)?.view.columns ?? null) : columns.value;
  const wanted = route.query.get("column") ?? kept;
  const [groupLimit, setGroupLimit] = useState(MOST_GROUPS);
  const [doomed, setDoomed] = useState<Row[]>([]);
  const [edited, setEdited] = useState<Run | null>(null);
  const [isTagging, setTagging] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => void refreshRuns(), []);
  const all = answer?.runs ?? NONE;
  const keyMetrics = panels.value?.key_metrics ?? [];
  const { parts, problem } = useMemo(() => parseSearch(text), [text]);
  const rows = useMemo(() => sortRows(filterRows(all, { parts, status, project }).filter((row) => !machine || machineOf(row.key, machines) === machine), sort), [all, parts, status, project, machine, sort]);
  const usual = useMemo(() => interesting(rows, keyMetrics).slice(0, USUAL_COLUMNS), [rows]);
  const extra = wanted ?? usual;
  const titles = columnTitles(extra, OWN_TITLES);
  const possible = useMemo(() => interesting(filterRows(all, { parts: [], status: "", project }), keyMetrics), [all, project]);
  const byKey = useMemo(() => new Map(all.map((row) => [row.key, row])), [all]);
  const groups = useMemo(() => groupRows(rows, group), [rows, group]);
  const chooseColumns = (ids: ColumnId[] | null) => {
    setQuery({ column: ids ?? undefined }, true);
    if (keptIn) {
      void changeView(keptIn, (view) => ({ ...view, columns: ids }));
      return;
    }
    columns.value = ids;
    remember("columns", JSON.stringify(ids));
  };
  if (runsError.value && !answer) return <main class="page"><Problem error={runsError.value} /></main>;
  if (!answer) return <main class="page" id="main"><Loading /></main>;
  if (!all.length) {
    return (
      <main class="page">
        {machines.length > 0 && <MachineTrouble />}
        <Empty title="No runs yet">
          <p>No runs in <code>{about.value?.root}</code>. Start one and it appears here:</p>
          <pre class="text" tabIndex={0}>{"trainvitals run -- python train.py\ntrainvitals demo"}</pre>
        </Empty>
      </main>
    );
  }
  const order = (id: string) => setQuery({ sort: sort === id ? `-${id}` : id }, true);
  const column = (id: string, title: string, right = false): TableColumn => ({
    title,
    right,
    sorted: sort === id ? "ascending" : sort === `-${id}` ? "descending" : undefined,
    head: <button type="button" class="plain" onClick={() => order(id)}>{title}{sort === id ? " ↑" : sort === `-${id}` ? " ↓" : ""}</button>,
  });
  const toggle = (key: string) => {
    const next = new Set(chosen.value);
    if (!next.delete(key)) next.add(key);
    chosen.value = next;
  };
  // In the order of selection: the first is the baseline of a comparison.
  const picked = [...chosen.value].flatMap((key) => byKey.get(key) ?? []);
  const remove = async () => {
    for (const row of doomed) await source.value!.remove(row.key).catch(setError);
    chosen.value = new Set();
    setDoomed([]);
    await refreshRuns();
  };
  const edit = () => void source.value!.run(picked[0].key).then(setEdited, setError);
  const shownColumns = [
    { title: "select", head: <span class="sr">select</span> },
    column("name", "run"), column("status", "status"), column("step", "step", true), column("seconds", "time", true), column("started", "started"), column("project", "project"),
    ...(machines.length ? [{ title: "machine", head: "machine" }] : []),
    ...extra.map((id) => column(id, titles.get(id)!, true)),
    column("tags", "tags"),
  ];
  const rowOf = (row: Row): TableRow => ({
    key: row.key,
    class: chosen.value.has(row.key) ? "picked" : "",
    onOpen: (event) => (event.ctrlKey || event.metaKey ? void open(formatRoute(runRoute(row.key)), "_blank") : go(runRoute(row.key))),
    cells: [
      { show: <input type="checkbox" aria-label={`select ${row.name}`} checked={chosen.value.has(row.key)} onChange={() => toggle(row.key)} /> },
      { show: <><Link to={runRoute(row.key)} title={row.id}>{row.name}</Link>{row.simulated && <span class="badge warning">simulated</span>}{row.name !== row.id && <span class="dim">{row.id}</span>}</>, class: "run-name" },
      { show: <RunStatus row={row} />, hint: row.cause ?? "", class: "state" },
      row.step?.toLocaleString("en-US") ?? "–",
      formatSpan(row.seconds),
      { show: <time title={row.started ?? ""}>{formatClock(row.started)}</time> },
      row.project,
      ...(machines.length ? [machineOf(row.key, machines)] : []),
      ...extra.map((id) => show(row, id)),
      { show: row.tags.length > 0 && row.tags.map((item) => <span class="badge" key={item}>{item}</span>) },
    ],
  });
  const statuses = [...new Set(all.map((row) => row.status))].sort();
  return (
    <main class="page" id="main">
      <div class="controls">
        <Search label="search runs" placeholder={`search ${formatCount(all.length, "run")}, e.g. lr>0.01   /`} value={text} onInput={(value) => setQuery({ q: value || undefined }, true)} />
        {answer.projects.length > 1 && <Choice label="project" value={project} options={[["", "all"], ...answer.projects.map((name) => [name, name] as const)]} onChange={(value) => setQuery({ project: value || undefined, column: undefined })} />}
        {machines.length > 1 && <Choice label="machine" value={machine} options={[["", "all"], ...machines.map((name) => [name, name] as const)]} onChange={(value) => setQuery({ machine: value || undefined })} />}
        <Choice label="status" value={status} options={[["", "all"], ...statuses.map((name) => [name, name] as const)]} onChange={(value) => setQuery({ status: value || undefined })} />
        {source.value!.isLive && <div class="views" role="group" aria-label="view">{VIEWS.map(([id, title]) => <button type="button" key={id} class={view === id ? "on" : ""} aria-pressed={view === id} onClick={() => setQuery({ view: id || undefined })}>{title}</button>)}</div>}
        {view === "" && <Choice label="group by" value={group} options={[["", "none"], ["project", "project"], ["status", "status"], ["host", "host"], ["tags", "tags"], ...possible.filter((id) => id.startsWith("config.")).slice(0, MOST_GROUPINGS).map((id) => [id, id.slice(7)] as const)]} onChange={(value) => setQuery({ group: value || undefined })} />}
        {view === "" && <Menu title="columns">{() => <ColumnChoice possible={possible} chosen={extra} isUsual={wanted === null} onChange={chooseColumns} />}</Menu>}
        {(rows.length < all.length || all.length < answer.total) && <span class="note" role="status">{formatMatches(rows.length, all.length, answer.total)}</span>}
      </div>
      {machines.length > 0 && <MachineTrouble />}
      {problem && <p class="search-problem" role="status"><b>{problem.message}</b>: {problem.hint}</p>}
      {chosen.value.size > 0 && (
        <div class="chosen" role="status">
          <span>{chosen.value.size} selected</span>
          <button type="button" class="primary" disabled={picked.length < 2 || picked.length > 20} onClick={() => go({ page: "compare", run: null, query: new Map([["run", picked.map((row) => row.key)]]) })}>compare</button>
          {canEdit() && picked.length === 1 && <button type="button" onClick={edit}>edit</button>}
          {canEdit() && <button type="button" onClick={() => setTagging(true)}>tag</button>}
          {canEdit() && <button type="button" class="danger" disabled={picked.some((row) => row.live)} onClick={() => setDoomed(picked)}><Icon name="trash" /> delete</button>}
          <button type="button" onClick={() => (chosen.value = new Set())}>clear selection</button>
        </div>
      )}
      {chosen.value.size > 0 && <EditHint what="edit, tag and delete runs" />}
      {edited && chosen.value.has(edited.key) && <RunForm key={edited.key} known={edited} onDone={() => setEdited(null)} />}
      {isTagging && picked.length > 0 && <TagForm rows={picked} onDone={() => setTagging(false)} />}
      {error && <Problem error={error} />}
      {doomed.length > 0 && <Confirm rows={doomed} onYes={() => void remove()} onNo={() => setDoomed([])} />}
      {rows.length === 0 && <Empty title="No runs match these filters"><p>{[findUnknown(all, parts), `${formatCount(all.length, "run")} in total`].filter(Boolean).join("; ")}.</p></Empty>}
      {view === "charts" && rows.length > 0 && <RunCharts rows={rows} possible={possible} />}
      {view === "sweep" && rows.length > 0 && <RunSweep rows={rows} />}
      {view === "" && groups.slice(0, groupLimit).map((part) => (
        <section class="section" key={part.name}>
          {group && <header><h2>{part.name}</h2><span class="note">{part.rows.length.toLocaleString("en-US")}</span></header>}
          {part.rows.length > 0 && <LongTable class="runs" columns={shownColumns} items={part.rows} keyOf={keyOf} rowOf={rowOf} />}
        </section>
      ))}
      {view === "" && groups.length > groupLimit && <button type="button" class="more" onClick={() => setGroupLimit(groupLimit + MOST_GROUPS)}>show more groups ({(groups.length - groupLimit).toLocaleString("en-US")} hidden)</button>}
    </main>
  );
}

function keyOf(row: Row): string {
  return row.key;
}

// "312 of 10,000 runs"; beyond what a server sends at once, of which of them.
function formatMatches(count: number, listed: number, total: number): string {
  const from = listed < total ? `the newest ${listed.toLocaleString("en-US")} of ${total.toLocaleString("en-US")} runs` : formatCount(listed, "run");
  return count < listed ? `${count.toLocaleString("en-US")} of ${from}` : from;
}

function ColumnChoice({ possible, chosen, isUsual, onChange }: { possible: ColumnId[]; chosen: ColumnId[]; isUsual: boolean; onChange(ids: ColumnId[] | null): void }) {
  const [text, setText] = useState("");
  const [before] = useState(chosen); // those come first, and nothing moves while boxes are ticked
  const offered = [...before, ...possible.filter((id) => !before.includes(id))];
  const found = new Set(search(offered.map(columnName), text));
  const shown = offered.filter((id) => found.has(columnName(id)));
  return (
    <>
      <header>
        <input class="search" type="search" aria-label="search columns" placeholder={`search ${formatCount(offered.length, "column")}`} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} ref={focusOnce} />
        <button type="button" disabled={isUsual} onClick={() => onChange(null)}>reset</button>
      </header>
      {shown.map((id) => (
        <label key={id} title={columnName(id)}>
          <input type="checkbox" checked={chosen.includes(id)} onChange={() => onChange(chosen.includes(id) ? chosen.filter((item) => item !== id) : [...chosen, id])} />
          <span class="menu-name">{columnName(id)}</span><span class="dim">{columnKind(id)}</span>
        </label>
      ))}
      {shown.length === 0 && <p class="dim">No columns match “{text}”</p>}
    </>
  );
}

// A stable function: Preact calls it when the box appears, not whenever the list is drawn again.
function focusOnce(box: HTMLElement | null): void {
  box?.focus();
}

function show(row: Row, id: ColumnId): string {
  const cell = compareCells.read(row, id);
  return id.startsWith("summary.") ? formatValue(cell as number | string | null) : formatConfig(cell);
}

function parseColumns(text: string | null): ColumnId[] | null {
  try {
    const found: unknown = JSON.parse(text ?? "null");
    return Array.isArray(found) ? found.filter((item): item is string => typeof item === "string") : null;
  } catch {
    return null;
  }
}

function Confirm({ rows, onYes, onNo }: { rows: Row[]; onYes(): void; onNo(): void }) {
  return (
    <div class="confirm" role="alertdialog" aria-label="delete runs">
      <p><b>Delete {rows.length === 1 ? `run ${rows[0].name} and all its files` : `${rows.length} runs and all their files`}?</b> This cannot be undone.</p>
      <ul>{rows.slice(0, 10).map((row) => <li key={row.key}>{row.id}</li>)}</ul>
      <button type="button" class="danger" onClick={onYes}>delete</button>
      <button type="button" onClick={onNo} ref={(button) => button?.focus()}>cancel</button>
    </div>
  );
}

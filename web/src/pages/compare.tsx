import { useEffect, useState } from "preact/hooks";
import { refreshRuns, runs, setQuery, source, usePageRoute } from "../data/page.ts";
import { dark, zoom } from "../data/store.ts";
import type { Comparison, Series, Value } from "../data/types.ts";
import { lineStyle, swatch } from "../logic/colors.ts";
import { formatChange, formatConfidence, formatConfig, formatSpan, formatValue, toNumber } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { runTitles, sortBy } from "../logic/table.ts";
import { Chart } from "../ui/chart.tsx";
import { ComparedPanels } from "../ui/compared_panels.tsx";
import { panelOf, uniqueTitles } from "../ui/panel.tsx";
import { Choice, Empty, Link, Loading, Problem, runRoute, RunStatus, Section, Smoothing, smoothingOf } from "../ui/parts.tsx";
import { Table, type TableColumn } from "../ui/table.tsx";

const AXES = [["step", "step"], ["relative", "time since start"], ["time", "time"]] as const;
const AGAIN_MS = 3000;

export function Compare() {
  const route = usePageRoute();
  const keys = route.query.get("run") ?? [];
  const axis = first(route, "x") ?? "step";
  const smoothing = smoothingOf(route);
  const zoomed = zoom.value?.axis === axis ? zoom.value : null;
  const [answer, setAnswer] = useState<Comparison | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => void refreshRuns(), []);
  useEffect(() => {
    if (source.value!.isLive && keys.length < 2) return;
    let current = true;
    source.value!.compare({ runs: keys, names: [], x: axis, start: zoomed?.start, end: zoomed?.end, points: 800 }).then(
      (found) => current && (setAnswer(found), setError(null)),
      (problem) => current && setError(problem),
    );
    return () => {
      current = false;
    };
  }, [keys.join("\n"), axis, zoomed?.start, zoomed?.end, round]);
  const anyLive = answer?.runs.some((row) => row.live);
  useEffect(() => {
    if (!anyLive || !source.value!.isLive) return;
    const timer = setInterval(() => document.visibilityState === "visible" && setRound((value) => value + 1), AGAIN_MS);
    return () => clearInterval(timer);
  }, [anyLive]);
  const rest = (runs.value?.runs ?? []).filter((row) => !keys.includes(row.key));
  const picker = source.value!.isLive && keys.length < 20 && (
    <Choice label="add" value="" options={[["", keys.length ? "another run" : "select a run"], ...rest.slice(0, 500).map((row) => [row.key, `${row.name} (${row.id})`] as const)]} onChange={(key) => key && setQuery({ run: [...keys, key] })} />
  );
  if (source.value!.isLive && keys.length < 2) {
    return (
      <main class="page" id="main">
        <div class="controls">{picker}</div>
        <Empty title="Select at least two runs to compare"><p>Add them above, or select them on the <Link to={{ page: "runs", run: null, query: new Map() }}>Runs</Link> page and press compare. The first is the baseline.</p></Empty>
      </main>
    );
  }
  if (error && !answer) return <main class="page" id="main"><div class="controls">{picker}</div><Problem error={error} /></main>;
  if (!answer) return <main class="page" id="main"><Loading /></main>;
  const titles = uniqueTitles(runTitles(answer.runs));
  return (
    <main class="page" id="main">
      <div class="controls">
        {picker}
        <Choice label="x" value={axis} options={AXES} onChange={(value) => setQuery({ x: value, zx: undefined, from: undefined, to: undefined })} />
        <Smoothing value={smoothing} />
      </div>
      {error && <Problem error={error} />}
      <ComparedPanels rows={answer.runs} titles={titles} axis={axis} smoothing={smoothing} round={round} />
      <Section title="Charts">
        <div class="charts">
          {answer.names.map((name) => {
            const series = answer.series.filter((item) => item.name === name);
            if (!series.length) return null;
            const panel = panelOf(name);
            return <Chart key={name} title={panel.title} help={name} series={series as Series[]} titles={series.map((item) => titles[item.run])} colors={series.map((item) => item.run)} axis={axis} unit={panel.unit} smoothing={panel.smooth ? smoothing : 0} log={panel.log_first} canLog={panel.log} />;
          })}
        </div>
      </Section>
      <Matrix answer={answer} titles={titles} keys={keys} />
      <Section title="Configuration differences" note={`${answer.config.length}`}>
        {answer.config.length === 0 ? <p class="note">The configurations are identical.</p> : <Differences answer={answer} differing={answer.config} titles={titles} />}
      </Section>
      {answer.others.map((group) => (
        <Section key={group.title} title={`${group.title[0].toUpperCase()}${group.title.slice(1)} differences`} note={`${group.rows.length}`}>
          <Differences answer={answer} differing={group.rows} titles={titles} />
        </Section>
      ))}
    </main>
  );
}

// The longer side goes down the page.
function Differences({ answer, differing, titles }: { answer: Comparison; differing: Comparison["config"]; titles: string[] }) {
  const keys = differing.map((row) => row.key);
  const cell = (row: Comparison["config"][number], at: number) => ({ ...shorten(formatConfig(row.values[at])), class: at && JSON.stringify(row.values[at]) !== JSON.stringify(row.values[0]) ? "changed" : "" });
  const byRun = titles.length > Math.max(keys.length, 4);
  const rows = byRun
    ? answer.runs.map((row, at) => ({ key: row.key, cells: [{ show: titles[at], class: "first" }, ...differing.map((item) => cell(item, at))] }))
    : differing.map((item) => ({ key: item.key, cells: [{ show: item.key, class: "mono first" }, ...titles.map((_, at) => cell(item, at))] }));
  return <Table columns={[{ title: byRun ? "run" : "key" }, ...(byRun ? keys : titles).map((title) => ({ title }))]} class="by-run" rows={rows} />;
}

// Of a commit its first characters; all of it in the tooltip.
function shorten(text: string): { show: string; hint?: string } {
  return /^[0-9a-f]{40}([0-9a-f]{24})?$/.test(text) ? { show: text.slice(0, 10), hint: text } : { show: text };
}

const MOST_COLUMNS = 8;

// Every run and what its metrics came to against the baseline; what was compared and how certain it is, in tooltips.
function Matrix({ answer, titles, keys }: { answer: Comparison; titles: string[]; keys: string[] }) {
  const route = usePageRoute();
  const sort = first(route, "sort") ?? "";
  const all = first(route, "metrics") === "all";
  const judged = [...new Set(answer.verdicts.map((item) => item.metric))];
  const usual = judged.length ? judged : answer.metrics.slice(0, MOST_COLUMNS).map((metric) => metric.name);
  const shown = all ? [...usual, ...answer.metrics.map((metric) => metric.name).filter((name) => !usual.includes(name))] : usual;
  const cells = answer.runs.map((_, at) => new Map(shown.map((name) => [name, readCell(answer, at, name)])));
  const order = sortPlaces(sort, answer, titles, cells);
  const column = (id: string, title: string, right = false, hint?: string): TableColumn => ({
    title,
    right,
    sorted: sort === id ? "ascending" : sort === `-${id}` ? "descending" : undefined,
    head: <button type="button" class="plain" title={hint} onClick={() => setQuery({ sort: sort === id ? `-${id}` : id }, true)}>{title}{sort === id ? " ↑" : sort === `-${id}` ? " ↓" : ""}</button>,
  });
  const hidden = answer.metrics.length - usual.length;
  return (
    <Section
      title="Runs"
      note={`compared with ${titles[0]}; ★ best value of all runs`}
      actions={hidden > 0 && <button type="button" onClick={() => setQuery({ metrics: all ? undefined : "all" }, true)}>{all ? "main metrics" : `all ${answer.metrics.length} metrics`}</button>}
    >
      <Table
        class="matrix"
        columns={[column("run", "run"), column("step", "step", true), column("time", "time", true), ...shown.map((name) => column(`metric.${name}`, panelOf(name).title, true, name))]}
        rows={order.map((at) => {
          const row = answer.runs[at];
          const group = answer.seeds.find((places) => places.includes(at)) ?? [at];
          return {
            key: row.key,
            class: at === 0 ? "picked" : "",
            cells: [
              {
                show: (
                  <>
                    <i class="swatch" style={{ background: swatch(lineStyle(at, dark.value)) }} /><Link to={runRoute(row.key)} title={row.id}>{titles[at]}</Link>
                    {at === 0 && <span class="badge">baseline</span>}
                    {group.length > 1 && <span class="badge" title="These runs differ only in their seed and are compared as a group.">{at === group[0] ? `${group.length} seeds` : `seed of ${titles[group[0]]}`}</span>}
                    {row.simulated && <span class="badge warning">simulated GPUs</span>}
                    <span class="below"><RunStatus row={row} />
                      {source.value!.isLive && at > 0 && <button type="button" class="plain" onClick={() => setQuery({ run: [row.key, ...keys.filter((key) => key !== row.key)] })}>set as baseline</button>}
                      {source.value!.isLive && keys.length > 2 && <button type="button" class="plain" aria-label={`remove ${row.name}`} onClick={() => setQuery({ run: keys.filter((key) => key !== row.key) })}>remove</button>}
                    </span>
                  </>
                ),
                class: "run-name first",
              },
              row.step?.toLocaleString("en-US") ?? "–",
              formatSpan(row.seconds),
              ...shown.map((name) => drawCell(cells[at].get(name)!)),
            ],
          };
        })}
      />
    </Section>
  );
}

interface MatrixCell {
  metric: Comparison["metrics"][number] | undefined;
  // At the end of the common steps where it was compared, else the last one.
  value: Value;
  last: Value;
  verdict: Comparison["verdicts"][number] | undefined;
  // What it was compared with, where the baseline's row shows another value.
  against: Value;
  // Its best, if no other run came as far.
  extreme: Value;
}

function readCell(answer: Comparison, run: number, name: string): MatrixCell {
  const metric = answer.metrics.find((item) => item.name === name);
  const last = metric?.values[run]?.last ?? null;
  const verdict = answer.verdicts.find((item) => item.run === run && item.metric === name);
  const base = usualBaseline(answer, name);
  const compared = run === 0 ? base : verdict?.value;
  const against = typeof verdict?.value === "number" && verdict.baseline !== base ? (verdict.baseline ?? null) : null;
  const extreme = metric && metric.best === run ? (metric.better === "lower" ? metric.values[run]?.low : metric.values[run]?.high) ?? null : null;
  return { metric, value: compared ?? last, last, verdict, against, extreme };
}

// Each run is compared over the steps that it has in common with the baseline, which was elsewhere at others.
function usualBaseline(answer: Comparison, name: string): Value {
  const counts = new Map<Value, number>();
  for (const item of answer.verdicts) if (item.metric === name) counts.set(item.baseline ?? null, (counts.get(item.baseline ?? null) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? null;
}

function drawCell({ metric, value, last, verdict, against, extreme }: MatrixCell) {
  const unit = metric?.unit ?? "";
  const confidence = verdict && verdict.confidence !== null ? formatConfidence(verdict.confidence) : "";
  const sure = verdict && confidence && (verdict.word === "uncertain" ? `only ${confidence} confidence` : `${confidence} confidence`);
  return {
    show: (
      <>
        {formatValue(value, unit)}
        {verdict && <span class={`below verdict ${verdict.word}`}>{verdict.change === null ? verdict.word : `${formatChange(verdict.change)}${verdict.word === "uncertain" ? "?" : ""}`}</span>}
        {against !== null && <span class="below dim">baseline {formatValue(against, unit)}</span>}
        {extreme !== null && <span class="below best">★ {formatValue(extreme, unit)}</span>}
      </>
    ),
    hint: [verdict && [verdict.word, sure, verdict.reason].filter(Boolean).join("; "), last !== value && `last value ${formatValue(last, unit)}`].filter(Boolean).join("\n"),
  };
}

// Which run comes when; what has no value comes last.
function sortPlaces(sort: string, answer: Comparison, titles: string[], cells: Map<string, MatrixCell>[]): number[] {
  const down = sort.startsWith("-");
  const id = down ? sort.slice(1) : sort;
  const places = titles.map((_, at) => at);
  const key = (at: number): number | string | null => {
    if (id === "run") return titles[at];
    if (id === "step") return answer.runs[at].step;
    if (id === "time") return answer.runs[at].seconds;
    return toNumber(cells[at].get(id.slice("metric.".length))?.value);
  };
  return id ? sortBy(places, key, down) : places;
}

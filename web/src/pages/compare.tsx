import { useEffect, useState } from "preact/hooks";
import { refreshRuns, runs, setQuery, source, usePageRoute } from "../data/page.ts";
import { dark, zoom } from "../data/store.ts";
import type { Comparison, Series } from "../data/types.ts";
import { lineStyle } from "../logic/colors.ts";
import { formatChange, formatConfig, formatSpan, formatValue } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { Chart } from "../ui/chart.tsx";
import { panelOf } from "../ui/panel.tsx";
import { Choice, Empty, Link, Loading, Problem, runRoute, Section, Status } from "../ui/parts.tsx";
import { Table } from "../ui/table.tsx";

const AXES = [["step", "step"], ["relative", "time since start"], ["time", "time"]] as const;
const AGAIN_MS = 3000;

export function Compare() {
  const route = usePageRoute();
  const keys = route.query.get("run") ?? [];
  const axis = first(route, "x") ?? "step";
  const smoothing = Number(first(route, "smooth") ?? 0.15);
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
  const titles = uniqueTitles(answer.runs.map((row) => row.name));
  return (
    <main class="page" id="main">
      <div class="controls">
        {picker}
        <Choice label="x" value={axis} options={AXES} onChange={(value) => setQuery({ x: value, zx: undefined, from: undefined, to: undefined })} />
        <label class="choice"><span>smoothing</span>
          <input type="range" min={0} max={1} step={0.05} value={smoothing} aria-label="smoothing" onInput={(event) => setQuery({ smooth: event.currentTarget.value }, true)} />
        </label>
      </div>
      {error && <Problem error={error} />}
      <Section title="Runs">
        <Table
          columns={[{ title: "run" }, { title: "status" }, { title: "step", right: true }, { title: "time", right: true }, { title: "", right: true }]}
          rows={answer.runs.map((row, at) => ({
            key: row.key,
            cells: [
              { show: <><i class="swatch" style={{ background: lineStyle(at, dark.value).stroke }} /><Link to={runRoute(row.key)}>{titles[at]}</Link>{at === 0 && <span class="badge">baseline</span>}{row.simulated && <span class="badge warning">simulated GPUs</span>}</>, class: "run-name" },
              { show: <Status status={row.status} live={row.live} /> },
              row.step?.toLocaleString("en-US") ?? "–",
              formatSpan(row.seconds),
              {
                show: source.value!.isLive && (
                  <>
                    {at > 0 && <button type="button" class="plain" onClick={() => setQuery({ run: [row.key, ...keys.filter((key) => key !== row.key)] })}>set as baseline</button>}
                    {keys.length > 2 && <button type="button" class="plain" aria-label={`remove ${row.name}`} onClick={() => setQuery({ run: keys.filter((key) => key !== row.key) })}>remove</button>}
                  </>
                ),
              },
            ],
          }))}
        />
      </Section>
      {answer.verdicts.length > 0 && <Verdicts verdicts={answer.verdicts} titles={titles} />}
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
      <Section title="Configuration differences" note={`${answer.config.length}`}>
        {answer.config.length === 0 ? <p class="note">The configurations are identical.</p> : (
          <Table
            columns={[{ title: "key" }, ...titles.map((title) => ({ title }))]}
            class="by-run"
            rows={answer.config.map((row) => ({
              key: row.key,
              cells: [{ show: row.key, class: "mono first" }, ...row.values.map((value, at) => ({ show: formatConfig(value), class: at && JSON.stringify(value) !== JSON.stringify(row.values[0]) ? "changed" : "" }))],
            }))}
          />
        )}
      </Section>
      <Section title="All metrics" note="last value; ★ marks the best run">
        <Table
          columns={[{ title: "metric" }, ...titles.map((title) => ({ title, right: true }))]}
          class="by-run"
          rows={answer.metrics.map((metric) => ({
            key: metric.name,
            cells: [
              { show: <>{metric.name}{metric.better && <span class="dim"> {metric.better} is better</span>}</>, class: "mono first" },
              ...metric.values.map((value, at) => ({
                show: (
                  <>
                    {formatValue(value?.last, metric.unit)}
                    {value && metric.better && <span class="dim"> {metric.better === "lower" ? "min" : "max"} {formatValue(metric.better === "lower" ? value.low : value.high, metric.unit)}{metric.best === at && " ★"}</span>}
                  </>
                ),
                class: metric.best === at ? "best" : "",
              })),
            ],
          }))}
        />
      </Section>
    </main>
  );
}

function uniqueTitles(names: string[]): string[] {
  const seen = new Map<string, number>();
  return names.map((name) => {
    const count = (seen.get(name) ?? 0) + 1;
    seen.set(name, count);
    return count > 1 ? `${name} (${count})` : name;
  });
}

function formatConfidence(value: number | null): string {
  if (value === null) return "–";
  return value > 0.9999 ? "> 99.99 %" : `${(value * 100).toFixed(value > 0.99 ? 2 : 0)} %`;
}

function Verdicts({ verdicts, titles }: { verdicts: Comparison["verdicts"]; titles: string[] }) {
  const several = titles.length > 2;
  return (
    <Section title={several ? "Verdicts against the baseline" : `Verdicts: ${titles[1]} vs. ${titles[0]}`} note="mean over the last 20 % of the common steps">
      <Table
        columns={[
          ...(several ? [{ title: "run" }] : []), { title: "metric" }, { title: "verdict" }, { title: "baseline", right: true }, { title: "this run", right: true },
          { title: "change", right: true }, { title: "confidence", right: true }, { title: "reason", wide: true },
        ]}
        rows={verdicts.map((item) => {
          const { title, unit } = panelOf(item.metric);
          return {
            key: `${item.run} ${item.metric}`,
            cells: [
              ...(several ? [titles[item.run]] : []),
              { show: title, class: "first", hint: item.metric },
              { show: <span class={`verdict ${item.word}`}>{item.word}</span> },
              formatValue(item.baseline, unit),
              formatValue(item.value, unit),
              formatChange(item.change),
              formatConfidence(item.confidence),
              { show: item.reason, class: "dim" },
            ],
          };
        })}
      />
    </Section>
  );
}

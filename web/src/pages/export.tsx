import { useState } from "preact/hooks";
import { about, panels, run, source } from "../data/page.ts";
import { setZoom, zoom } from "../data/store.ts";
import type { Run, Series } from "../data/types.ts";
import { fileName, toCsv } from "../logic/csv.ts";
import { formatClock, formatConfig, formatCount, formatValue, formatX } from "../logic/format.ts";
import { search, seriesTitle } from "../logic/metrics.ts";
import { download } from "../ui/download.ts";
import { Choice, Problem, Search, Section } from "../ui/parts.tsx";

const FORMATS = [
  ["csv", "CSV", "for spreadsheets; a column for every name"],
  ["parquet", "Parquet", "for pandas, DuckDB, Spark; the smallest"],
  ["jsonl", "JSONL", "lines as they were written"],
  ["json", "JSON", "one array"],
] as const;
const REPORTS = [
  ["html", "HTML", "one file with these charts, which opens without a network"],
  ["md", "Markdown", "for wikis, tickets and pull requests"],
  ["json", "JSON", "for programs"],
  ["png", "PNG", "the charts as a picture"],
  ["svg", "SVG", "the charts as a drawing"],
] as const;
const TITLES: Record<string, string> = {
  training: "Training metrics", gpu: "GPUs", system: "Host", process: "Processes", openmetrics: "Scraped exporters", events: "Events", alerts: "Alerts",
};

export function Export() {
  const known = run.value!;
  const tables = [...Object.keys(known.tables).filter((table) => table in TITLES), "events", "alerts"];
  const live = source.value!.isLive;
  return (
    <>
      {live && (
        <Section title="A report" note="summary, findings, charts, resources, alerts, configuration">
          <div class="controls">
            {REPORTS.map(([id, title, help]) => <a key={id} class="button" title={help} href={source.value!.reportAddress(known.key, id)!} download>{title}</a>)}
          </div>
        </Section>
      )}
      {live ? (
        <Section title="Every line, as a file" note="not downsampled">
          <div class="table-box">
            <table class="exports">
              <thead><tr><th>table</th>{FORMATS.map(([id, title, help]) => <th key={id} title={help}>{title}</th>)}</tr></thead>
              <tbody>
                {tables.map((table) => (
                  <tr key={table}>
                    <td>{TITLES[table]}</td>
                    {FORMATS.map(([id, title]) => (
                      <td key={id}><a class="button" href={source.value!.exportAddress(known.key, id, table)!} download>{title}</a></td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Section>
      ) : (
        <Section title="Export"><p>This is a report in one file. Every line as it was logged is in the run folder.</p></Section>
      )}
      <Selection known={known} />
      <Section title="This run, summed up" actions={<button type="button" onClick={() => download(fileName(known.id, "json"), "application/json", JSON.stringify(known, null, 2))}>save as JSON</button>}>
        <Details known={known.details} />
      </Section>
      {live && (
        <Section title="On the command line">
          <pre class="text">{`trainvitals export ${known.id} --format parquet --table all -o ${known.id}.parquet
trainvitals report ${known.id} -o report.html
curl ${location.origin}/api/v1/runs/${encodeURIComponent(known.key)}/series?name=loss&points=1000`}</pre>
          <p class="note">The API is described at <a href="api/v1/openapi.json">api/v1/openapi.json</a>. trainvitals {about.value?.version}.</p>
        </Section>
      )}
    </>
  );
}

const MOST_POINTS = 20_000;
const TOGETHER = 50;

// Some metrics of one table, of the stretch that is zoomed in.
function Selection({ known }: { known: Run }) {
  const tables = Object.keys(known.tables).filter((table) => known.tables[table].names.length && table in TITLES);
  const [chosen, setTable] = useState("training");
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  if (!tables.length) return null;
  const table = tables.includes(chosen) ? chosen : tables[0];
  const names = search(known.tables[table].names, text).filter((name) => name !== "step");
  const axis = table === "training" ? (zoom.value?.axis ?? "step") : zoom.value?.axis === "relative" ? "relative" : "time";
  const stretch = zoom.value?.axis === axis ? zoom.value : null;
  const save = async (format: "csv" | "json") => {
    setBusy(true);
    try {
      const series: Series[] = [];
      for (let at = 0; at < names.length; at += TOGETHER) {
        const answer = await source.value!.series(known.key, { names: names.slice(at, at + TOGETHER), table, x: axis, start: stretch?.start, end: stretch?.end, points: MOST_POINTS });
        series.push(...answer.series);
      }
      const by = panels.value?.panels.find((panel) => panel.table === table)?.by ?? [];
      const titles = series.map((item) => [item.name, seriesTitle({ ...item, name: "" }, series.map((other) => ({ ...other, name: "" })), by)].filter(Boolean).join(" "));
      const name = fileName(`${known.id}-${table}-selection`, format);
      if (format === "csv") download(name, "text/csv", toCsv(axis, series, titles));
      else download(name, "application/json", JSON.stringify({ run: known.id, table, axis, start: stretch?.start, end: stretch?.end, series }));
      setError(null);
    } catch (problem) {
      setError(problem as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Section title="A selection" note={stretch ? `${formatX(axis, stretch.start)} to ${formatX(axis, stretch.end)}` : "from beginning to end; zoom into a chart to take a part"}>
      <div class="controls">
        <Choice label="table" value={table} options={tables.map((name) => [name, TITLES[name]] as const)} onChange={setTable} />
        <Search label="search metrics" placeholder={`all ${formatCount(known.tables[table].names.length, "metric")}, or some of them`} value={text} onInput={setText} />
        {stretch && <button type="button" onClick={() => setZoom(null)}>from beginning to end</button>}
        <button type="button" disabled={busy || !names.length} onClick={() => void save("csv")}>save {names.length.toLocaleString("en-US")} as CSV</button>
        <button type="button" disabled={busy || !names.length} onClick={() => void save("json")}>as JSON</button>
      </div>
      {error && <Problem error={error} />}
      <p class="note">At most {MOST_POINTS.toLocaleString("en-US")} points of each, every peak among them. Each chart also has buttons for PNG and for CSV of what it shows.</p>
    </Section>
  );
}

function Details({ known }: { known: Record<string, unknown> }) {
  const config = (known.config ?? {}) as Record<string, unknown>;
  const rows: [string, unknown][] = [
    ["folder", known.folder], ["command", Array.isArray(known.command) ? known.command.join(" ") : known.command], ["started", formatClock(known.started as string)],
    ["host", describeHost(known.host)], ["python", short(known.python, ["version"])],
    ["git", describeGit(known.git)], ["packages", short(known.packages)], ["notes", known.notes],
  ];
  return (
    <div class="two">
      <dl class="details">{rows.filter(([, value]) => value).map(([name, value]) => <><dt>{name}</dt><dd>{formatConfig(value)}</dd></>)}</dl>
      <dl class="details">{Object.entries(config).map(([name, value]) => <><dt>{name}</dt><dd>{formatConfig(value)}</dd></>)}</dl>
    </div>
  );
}

function describeHost(value: unknown): string {
  const host = (value ?? {}) as Record<string, unknown>;
  const memory = typeof host.memory_total_mb === "number" ? formatValue(host.memory_total_mb, "MB") : "";
  return [host.name, host.distribution, host.cpu_count && `${host.cpu_count} CPUs`, memory].filter(Boolean).join(", ");
}

function describeGit(value: unknown): string {
  const git = (value ?? {}) as Record<string, unknown>;
  const commit = String(git.commit ?? "").slice(0, 12);
  return [[git.branch, commit].filter(Boolean).join(" "), git.dirty && "with changes"].filter(Boolean).join(", ");
}

function short(value: unknown, keys?: string[]): string {
  if (typeof value !== "object" || value === null) return "";
  return Object.entries(value)
    .filter(([key, item]) => (!keys || keys.includes(key)) && item !== null && item !== "" && item !== false)
    .map(([key, item]) => (keys?.length === 1 ? String(item) : `${key} ${item}`))
    .join(", ");
}

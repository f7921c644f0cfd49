import { useState } from "preact/hooks";
import { about, panels, run, source } from "../data/page.ts";
import { setZoom, zoom, zoomOn } from "../data/store.ts";
import type { Run, Series } from "../data/types.ts";
import { fileName, toCsv } from "../logic/csv.ts";
import { formatCount, formatX } from "../logic/format.ts";
import { search, seriesTitle } from "../logic/metrics.ts";
import { download } from "../ui/download.ts";
import { Choice, Problem, Search, Section } from "../ui/parts.tsx";

const FORMATS = [
  ["csv", "CSV", "for spreadsheets; one column per metric"],
  ["parquet", "Parquet", "for pandas, DuckDB, Spark; the smallest file"],
  ["jsonl", "JSONL", "the rows as logged"],
  ["json", "JSON", "one array"],
] as const;
const REPORTS = [
  ["html", "HTML", "one self-contained file with interactive charts, works offline"],
  ["md", "Markdown", "for wikis, tickets and pull requests"],
  ["json", "JSON", "machine-readable"],
  ["png", "PNG", "the charts as an image"],
  ["svg", "SVG", "the charts as a vector image"],
] as const;
const TITLES: Record<string, string> = {
  training: "Training metrics", gpu: "GPUs", system: "Host", process: "Processes", openmetrics: "Scraped exporters", events: "Events", alerts: "Alerts",
};

export function Export() {
  const known = run.value!;
  const tables = [...Object.keys(known.tables).filter((table) => table in TITLES), "events", "alerts"];
  const live = source.value!.isLive;
  const named = known.tables.training?.names.find((name) => name !== "step") ?? "loss";
  return (
    <>
      {live && (
        <Section title="Report" note="summary, findings, charts, resources, alerts, configuration">
          <div class="controls">
            {REPORTS.map(([id, title, help]) => <a key={id} class="button" title={help} href={source.value!.reportAddress(known.key, id)!} download>{title}</a>)}
          </div>
        </Section>
      )}
      {live ? (
        <Section title="Raw data" note="every row, not downsampled">
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
        <Section title="Export"><p>This is a self-contained report. The raw data is in the run folder.</p></Section>
      )}
      <Selection known={known} />
      {live && (
        <Section title="On the command line">
          <pre class="text" tabIndex={0}>{`trainvitals export ${known.id} --format parquet --table all -o ${known.id}.parquet
trainvitals report ${known.id} -o report.html
curl "${location.origin}/api/v1/runs/${encodeURIComponent(known.key)}/series?name=${encodeURIComponent(named)}&points=1000"`}</pre>
          <p class="note">API reference: <a href="api/v1/openapi.json">api/v1/openapi.json</a>. trainvitals {about.value?.version}.</p>
        </Section>
      )}
    </>
  );
}

const MOST_POINTS = 20_000;
const TOGETHER = 50;

// Some metrics of one table, over the range that is zoomed in.
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
  const range = zoomOn(axis) ?? null;
  const save = async (format: "csv" | "json") => {
    setBusy(true);
    try {
      const series: Series[] = [];
      for (let at = 0; at < names.length; at += TOGETHER) {
        const answer = await source.value!.series(known.key, { names: names.slice(at, at + TOGETHER), table, x: axis, start: range?.start, end: range?.end, points: MOST_POINTS });
        series.push(...answer.series);
      }
      const by = panels.value?.panels.find((panel) => panel.table === table)?.by ?? [];
      const titles = series.map((item) => [item.name, seriesTitle({ ...item, name: "" }, series.map((other) => ({ ...other, name: "" })), by)].filter(Boolean).join(" "));
      const name = fileName(`${known.id}-${table}-selection`, format);
      if (format === "csv") download(name, "text/csv", toCsv(axis, series, titles));
      else download(name, "application/json", JSON.stringify({ run: known.id, table, axis, start: range?.start, end: range?.end, series }));
      setError(null);
    } catch (problem) {
      setError(problem as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Section title="Selection" note={range ? `${formatX(axis, range.start)} to ${formatX(axis, range.end)}` : "the whole run; zoom into a chart to select a range"}>
      <div class="controls">
        <Choice label="table" value={table} options={tables.map((name) => [name, TITLES[name]] as const)} onChange={setTable} />
        <Search label="search metrics" placeholder={`filter ${formatCount(known.tables[table].names.length, "metric")}`} value={text} onInput={setText} />
        {range && <button type="button" onClick={() => setZoom(null)}>whole run</button>}
        <button type="button" disabled={busy || !names.length} onClick={() => void save("csv")}>save {names.length.toLocaleString("en-US")} as CSV</button>
        <button type="button" disabled={busy || !names.length} onClick={() => void save("json")}>as JSON</button>
      </div>
      {error && <Problem error={error} />}
      <p class="note">At most {MOST_POINTS.toLocaleString("en-US")} points per metric; peaks are kept. Each chart also has buttons to save it as PNG or CSV.</p>
    </Section>
  );
}

import { about, run, source } from "../data/page.ts";
import { fileName } from "../logic/csv.ts";
import { formatClock, formatConfig } from "../logic/format.ts";
import { download } from "../ui/download.ts";
import { Section } from "../ui/parts.tsx";

const FORMATS = [
  ["csv", "CSV", "for spreadsheets; a column for every name"],
  ["parquet", "Parquet", "for pandas, DuckDB, Spark; the smallest"],
  ["jsonl", "JSONL", "lines as they were written"],
  ["json", "JSON", "one array"],
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
          <p class="note">Each chart also has buttons for PNG and for CSV of what it shows.</p>
        </Section>
      ) : (
        <Section title="Export"><p>This is a report in one file. Each chart has buttons for PNG and CSV of what it shows; everything else is in the run folder.</p></Section>
      )}
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

function Details({ known }: { known: Record<string, unknown> }) {
  const config = (known.config ?? {}) as Record<string, unknown>;
  const rows: [string, unknown][] = [
    ["folder", known.folder], ["command", known.command], ["started", formatClock(known.started as string)],
    ["host", short(known.host, ["name", "distribution", "cpu_count", "memory_total_mb"])], ["python", short(known.python, ["version"])],
    ["git", short(known.git, ["branch", "commit", "dirty"])], ["packages", short(known.packages)], ["notes", known.notes],
  ];
  return (
    <div class="two">
      <dl class="details">{rows.filter(([, value]) => value).map(([name, value]) => <><dt>{name}</dt><dd>{formatConfig(value)}</dd></>)}</dl>
      <dl class="details">{Object.entries(config).map(([name, value]) => <><dt>{name}</dt><dd>{formatConfig(value)}</dd></>)}</dl>
    </div>
  );
}

function short(value: unknown, keys?: string[]): string {
  if (typeof value !== "object" || value === null) return "";
  return Object.entries(value)
    .filter(([key, item]) => (!keys || keys.includes(key)) && item !== null && item !== "" && item !== false)
    .map(([key, item]) => (keys?.length === 1 ? String(item) : `${key} ${item}`))
    .join(", ");
}

// What a run was made of: configuration, command, code, machine; and its attempts.
import { useState } from "preact/hooks";
import type { Attempt, Run } from "../data/types.ts";
import { fileName } from "../logic/csv.ts";
import { formatClock, formatConfig, formatCount, formatSpan, formatValue } from "../logic/format.ts";
import { download } from "./download.ts";
import { canEdit, EditHint, hasNotes, RunForm } from "./edit.tsx";
import { Section, Status } from "./parts.tsx";
import { Table } from "./table.tsx";

export function RunDetails({ known }: { known: Run }) {
  const { details } = known;
  const [isOpen, setOpen] = useState(false);
  const config = Object.entries(known.config);
  const packages = Object.entries((details.packages ?? {}) as Record<string, unknown>);
  const python = (details.python ?? {}) as Record<string, unknown>;
  const rows: [string, unknown][] = [
    ["command", details.command], ["git", describeGit(details.git)],
    ["host", describeHost(details.host)], ...known.job_facts, ["GPUs", describeGpus(known)], ["python", python.version], ["folder", details.folder],
  ];
  return (
    <Section
      title="Run details"
      actions={
        <>
          {canEdit() && !hasNotes(known) && !isOpen && <button type="button" title="edit name, notes and tags" onClick={() => setOpen(true)}>edit</button>}
          <button type="button" onClick={() => download(fileName(known.id, "json"), "application/json", JSON.stringify(known, null, 2))}>save as JSON</button>
        </>
      }
    >
      {isOpen && <RunForm known={known} onDone={() => setOpen(false)} />}
      <div class="two">
        {config.length > 0 && <Pairs label="configuration" rows={config} />}
        <div>
          <Pairs label="environment" rows={rows.filter(([, value]) => value)} />
          {!hasNotes(known) && <EditHint what="edit name, notes and tags" />}
          {packages.length > 0 && (
            <details class="packages">
              <summary>{formatCount(packages.length, "package")}</summary>
              <Pairs label="packages" rows={packages} />
            </details>
          )}
        </div>
      </div>
    </Section>
  );
}

function Pairs({ label, rows }: { label: string; rows: [string, unknown][] }) {
  return <dl class="details" aria-label={label}>{rows.map(([name, value]) => <><dt title={name}>{name}</dt><dd>{formatConfig(value)}</dd></>)}</dl>;
}

// Only where a run was started more than once.
export function Attempts({ attempts }: { attempts: Attempt[] }) {
  if (attempts.length < 2) return null;
  return (
    <Section title="Attempts" note={`${attempts.length}`}>
      <Table
        columns={[{ title: "attempt", right: true }, { title: "started" }, { title: "duration", right: true }, { title: "from step", right: true }, { title: "host" }, { title: "status" }, { title: "why it ended" }]}
        rows={attempts.map((attempt) => ({
          key: String(attempt.number),
          cells: [
            String(attempt.number),
            formatClock(attempt.started, true),
            formatSpan(attempt.seconds),
            attempt.first_step?.toLocaleString("en-US") ?? "–",
            attempt.host,
            { show: <Status status={attempt.status} /> },
            attempt.cause ?? "",
          ],
        }))}
      />
    </Section>
  );
}

function describeHost(value: unknown): string {
  const host = (value ?? {}) as Record<string, unknown>;
  const memory = typeof host.memory_total_mb === "number" ? formatValue(host.memory_total_mb, "MB") : "";
  return [host.name, host.distribution, host.cpu_count && `${host.cpu_count} CPUs`, memory].filter(Boolean).join(", ");
}

// "8 × NVIDIA H100"
function describeGpus(known: Run): string {
  const counts = new Map<string, number>();
  for (const labels of known.tables.gpu?.labels ?? []) {
    const name = String(labels.gpu_name ?? "GPU");
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].map(([name, count]) => `${count} × ${name}`).join(", ");
}

function describeGit(value: unknown): string {
  const git = (value ?? {}) as Record<string, unknown>;
  const commit = String(git.commit ?? "").slice(0, 12);
  return [[git.branch, commit].filter(Boolean).join(" "), git.dirty && "uncommitted changes"].filter(Boolean).join(", ");
}

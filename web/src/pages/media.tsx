// Images, tables, texts and histograms that were logged: a card for each name, and a slider for the step.
import { useEffect, useRef, useState } from "preact/hooks";
import { run, setQuery, source, usePageRoute } from "../data/page.ts";
import type { Media as MediaAnswer, MediaGroup, MediaItem, MediaTable, MediaText } from "../data/types.ts";
import { cell, fileName } from "../logic/csv.ts";
import { formatClock, formatCount, formatNumber } from "../logic/format.ts";
import { allSteps, KINDS, stepAt, stepsOf } from "../logic/media.ts";
import { search } from "../logic/metrics.ts";
import { first, number } from "../logic/route.ts";
import { sortBy } from "../logic/table.ts";
import { download } from "../ui/download.ts";
import { HistogramChart } from "../ui/histogram.tsx";
import { Icon } from "../ui/icons.tsx";
import { Choice, Empty, Loading, Problem, Search, Section, useNear } from "../ui/parts.tsx";
import { Table, type TableCell } from "../ui/table.tsx";
import { useFullScreen } from "../ui/tools.tsx";

const TITLES = { image: "Images", table: "Tables", text: "Texts", histogram: "Histograms" };
const SHOWN = 60;
const ROWS = 100;
const SMALL = 128; // pixels; a smaller image is enlarged, and its pixels stay sharp

export function Media() {
  const route = usePageRoute();
  const known = run.value!;
  const text = first(route, "q") ?? "";
  const kind = first(route, "kind") ?? "";
  const wanted = number(route, "step");
  const [answer, error] = useMedia(known);
  if (!answer) return error ? <Problem error={error} /> : <Loading />;
  if (!answer.groups.length) {
    return (
      <Empty title="No media logged yet">
        <p>Images, tables, texts and histograms appear here, by name and step:</p>
        <p><code>run.log_image("samples", image)</code></p>
        <p><code>run.log_table("errors", rows)</code></p>
        <p><code>run.log_text("answer", text)</code></p>
        <p><code>run.log_histogram("logits", values)</code></p>
      </Empty>
    );
  }
  const names = new Set(search([...new Set(answer.groups.map((group) => group.name))], text));
  const shown = answer.groups.filter((group) => names.has(group.name) && (!kind || group.kind === kind));
  const kinds = KINDS.filter((name) => answer.groups.some((group) => group.kind === name));
  const steps = allSteps(answer.groups);
  return (
    <>
      <div class="controls">
        <Search label="search media" placeholder={`search ${formatCount(answer.groups.length, "name")}   /`} value={text} onInput={(value) => setQuery({ q: value || undefined }, true)} />
        {kinds.length > 1 && <Choice label="kind" value={kind} options={[["", "all"], ...kinds.map((name) => [name, TITLES[name].toLowerCase()] as const)]} onChange={(value) => setQuery({ kind: value || undefined })} />}
        {steps.length > 1 && <StepSlider label="step" title="step of all" steps={steps} at={stepAt(steps, wanted)} onChange={(step) => setQuery({ step: step === steps[steps.length - 1] ? undefined : step ?? undefined }, true)} />}
      </div>
      {error && <Problem error={error} />}
      {!shown.length && <Empty title={`No media match “${text}”`}><p>{formatCount(answer.groups.length, "name")} in total.</p></Empty>}
      {KINDS.map((name) => {
        const groups = shown.filter((group) => group.kind === name);
        return groups.length > 0 && <Kind key={name} title={TITLES[name]} groups={groups} runKey={known.key} wanted={wanted} state={known} />;
      })}
      {answer.left_out > 0 && <p class="note">{formatCount(answer.left_out, "older item")} not in this report; all are in the run folder.</p>}
    </>
  );
}

// What is there by now, asked for again when the run has changed.
export function useMedia(known: { key: string }): [MediaAnswer | null, Error | null] {
  const [answer, setAnswer] = useState<MediaAnswer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.media(known.key).then((found) => current && (setAnswer(found), setError(null)), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [known]);
  return [answer, error];
}

function Kind({ title, groups, runKey, wanted, state }: { title: string; groups: MediaGroup[]; runKey: string; wanted: number | undefined; state: unknown }) {
  const [limit, setLimit] = useState(SHOWN);
  return (
    <Section title={title} note={groups.length.toLocaleString("en-US")}>
      <div class={groups[0].kind === "image" ? "media-grid" : "media-grid wide"}>
        {groups.slice(0, limit).map((group) => <Card key={group.name} group={group} runKey={runKey} wanted={wanted} state={state} />)}
      </div>
      {groups.length > limit && <button type="button" class="more" onClick={() => setLimit(limit + SHOWN)}>show more ({(groups.length - limit).toLocaleString("en-US")} hidden)</button>}
    </Section>
  );
}

export function Card({ group, runKey, wanted, state }: { group: MediaGroup; runKey: string; wanted: number | undefined; state: unknown }) {
  const box = useRef<HTMLElement>(null);
  const [place, near] = useNear<HTMLDivElement>();
  const [full, toggleFull] = useFullScreen(box);
  // Its own slider counts until that of the page is moved.
  const [own, setOwn] = useState<number | undefined>(undefined);
  useEffect(() => setOwn(undefined), [wanted]);
  if (group.kind === "histogram") {
    return <div ref={place} class="media-place">{near && <HistogramChart runKey={runKey} name={group.name} title={group.name} state={state} />}</div>;
  }
  const steps = stepsOf(group.items);
  const at = stepAt(steps, own ?? wanted);
  const items = group.items.filter((item) => item.step === at);
  return (
    <div ref={place} class="media-place">
      <figure class={`chart media ${full.value ? "full" : ""}`} ref={box} data-media={group.name}>
        <figcaption>
          <h3 title={group.name}>{group.name}</h3>
          <span class="axis">{at === null ? "" : `step ${at.toLocaleString("en-US")}`}</span>
          <span class="tools">
            <button type="button" title="full screen" aria-label={`${group.name}: full screen`} onClick={toggleFull}><Icon name="full" /></button>
          </span>
        </figcaption>
        <div class={`media-body ${items.length > 1 ? "several" : ""}`}>
          {near && items.map((item, count) => (group.kind === "image"
            ? <Picture key={count} runKey={runKey} name={group.name} item={item} />
            : <Content key={count} kind={group.kind as "table" | "text"} runKey={runKey} name={group.name} item={item} />))}
        </div>
        {steps.length > 1 && <StepSlider title={`step of ${group.name}`} steps={steps} at={at} onChange={(step) => setOwn(step ?? undefined)} />}
      </figure>
    </div>
  );
}

function StepSlider({ label, title, steps, at, onChange }: { label?: string; title: string; steps: (number | null)[]; at: number | null; onChange(step: number | null): void }) {
  const place = Math.max(steps.indexOf(at), 0);
  const spelled = at === null ? "no step" : at.toLocaleString("en-US");
  return (
    <label class="choice steps">
      {label && <span>{label}</span>}
      <input type="range" min={0} max={steps.length - 1} step={1} value={place} aria-label={title} aria-valuetext={`step ${spelled}`} onInput={(event) => onChange(steps[Number(event.currentTarget.value)])} />
      <output>{label ? spelled : `${place + 1} of ${steps.length}`}</output>
    </label>
  );
}

function Picture({ runKey, name, item }: { runKey: string; name: string; item: MediaItem }) {
  const [size, setSize] = useState("");
  const [broken, setBroken] = useState(false);
  useEffect(() => setBroken(false), [item.file]);
  const title = `${name}${item.step === null ? "" : `, step ${item.step}`}`;
  return (
    <div class="picture">
      {broken ? <p class="note">This image cannot be shown.</p> : (
        <img
          src={source.value!.imageAddress(runKey, item.file)}
          alt={item.caption || title}
          title={[item.caption, title, size, item.time === null ? "" : formatClock(new Date(item.time * 1000).toISOString(), true)].filter(Boolean).join("\n")}
          loading="lazy"
          decoding="async"
          onError={() => setBroken(true)}
          onLoad={(event) => {
            const { naturalWidth: width, naturalHeight: height } = event.currentTarget;
            setSize(`${width} × ${height}`);
            event.currentTarget.classList.toggle("small", Math.max(width, height) < SMALL);
          }}
        />
      )}
      <Caption item={item} />
    </div>
  );
}

function Caption({ item }: { item: MediaItem }) {
  const text = [item.owner, item.caption].filter(Boolean).join(": ");
  return text ? <p class="note media-caption">{text}</p> : null;
}

function Content({ kind, runKey, name, item }: { kind: "table" | "text"; runKey: string; name: string; item: MediaItem }) {
  const [found, setFound] = useState<MediaTable | MediaText | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    const asked: Promise<MediaTable | MediaText> = kind === "table" ? source.value!.mediaTable(runKey, item.file) : source.value!.mediaText(runKey, item.file);
    asked.then((answer) => current && (setFound(answer), setError(null)), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [runKey, item.file]);
  if (error) return <Problem error={error} />;
  if (!found) return <Loading />;
  return (
    <>
      <Caption item={item} />
      {"columns" in found ? <Rows table={found} name={name} /> : (
        <>
          <pre class="text" tabIndex={0} aria-label={name}>{found.text}</pre>
          {found.cut && <p class="note">Only the beginning is shown.</p>}
        </>
      )}
    </>
  );
}

function Rows({ table, name }: { table: MediaTable; name: string }) {
  const [sort, setSort] = useState<{ column: number; down: boolean } | null>(null);
  const [limit, setLimit] = useState(ROWS);
  const listed = table.rows.map((cells, at) => ({ cells, at }));
  const rows = sort ? sortBy(listed, (row) => row.cells[sort.column], sort.down) : listed;
  const isNumeric = table.columns.map((_, at) => table.rows.some((row) => typeof row[at] === "number") && table.rows.every((row) => typeof row[at] !== "object" || row[at] === null));
  const order = (column: number) => setSort((now) => (now?.column !== column ? { column, down: isNumeric[column] } : now.down === isNumeric[column] ? { column, down: !now.down } : null));
  return (
    <>
      <Table
        class="media-table"
        columns={table.columns.map((title, at) => ({
          title,
          right: isNumeric[at],
          sorted: sort?.column === at ? (sort.down ? "descending" : "ascending") : undefined,
          head: <button type="button" class="plain" onClick={() => order(at)}>{title || "–"}{sort?.column === at && (sort.down ? " ↓" : " ↑")}</button>,
        }))}
        rows={rows.slice(0, limit).map(({ cells, at }) => ({ key: String(at), cells: table.columns.map((_, column) => show(cells[column])) }))}
      />
      <div class="media-foot">
        <span class="note">{table.total > table.rows.length ? `first ${table.rows.length.toLocaleString("en-US")} of ` : ""}{formatCount(table.total, "row")}</span>
        {rows.length > limit && <button type="button" class="more" onClick={() => setLimit(limit + 10 * ROWS)}>show more ({(rows.length - limit).toLocaleString("en-US")} hidden)</button>}
        <button type="button" class="more" aria-label={`${name}: save as CSV`} onClick={() => download(fileName(name, "csv"), "text/csv", toCsv(table))}>save as CSV</button>
      </div>
    </>
  );
}

function show(value: unknown): TableCell {
  const text = spell(value);
  return typeof value === "number" && !Number.isInteger(value) ? { show: formatNumber(value, 6), hint: text } : text;
}

function spell(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function toCsv(table: MediaTable): string {
  return [table.columns, ...table.rows].map((row) => table.columns.map((_, at) => cell(typeof row[at] === "object" ? spell(row[at]) : row[at])).join(",")).join("\n") + "\n";
}

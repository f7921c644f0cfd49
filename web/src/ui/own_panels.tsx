// The custom panels of a project, and the form that makes one.
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { useFeed } from "../data/feed.ts";
import { SourceError, type SeriesQuery } from "../data/source.ts";
import { run, source, stale, zoomOn } from "../data/store.ts";
import type { OwnPanel } from "../data/types.ts";
import { changeView, keptView, type Change } from "../data/view.ts";
import type { Mark } from "../logic/marks.ts";
import { seriesTitle } from "../logic/metrics.ts";
import { ChangedMeanwhile, movePanel, parseItems, putPanel, removePanel, titleOf } from "../logic/own_panels.ts";
import { Chart, heightOf } from "./chart.tsx";
import { Icon } from "./icons.tsx";
import { POINTS, uniqueTitles } from "./panel.tsx";
import { Problem, Section, useNear } from "./parts.tsx";

interface Props {
  axis: string;
  axes: string[];
  smoothing: number;
  marks: Mark[];
}

interface Edited {
  panel: OwnPanel;
  before: OwnPanel | null; // null: it is new
}

export function OwnPanels({ axis, axes, smoothing, marks }: Props) {
  const project = run.value!.project;
  const panels = keptView(project)?.view.panels ?? [];
  const edited = useSignal<Edited | null>(null);
  const error = useSignal<Error | null>(null);
  const begin = (panel: OwnPanel, before: OwnPanel | null) => {
    error.value = null;
    edited.value = { panel, before };
  };
  const keep = (change: Change) =>
    changeView(project, change).then(
      () => (edited.value = null),
      (problem: Error) => {
        error.value = problem;
        // Who saves again has seen what it is now.
        const there = keptView(project)?.view.panels.find((panel) => panel.id === edited.value?.panel.id);
        if (edited.value && there) edited.value = { ...edited.value, before: there };
      },
    );
  const chart = (panel: OwnPanel, at: number) => (
    <OwnPanelChart
      key={panel.id}
      panel={panel}
      axis={panel.x || axis}
      smoothing={smoothing}
      marks={panel.x && panel.x !== axis ? undefined : marks}
      actions={
        !isFixed && <>
          {at > 0 && <EarlierButton title={titleOf(panel)} onClick={() => void changeView(project, (view) => movePanel(view, panel.id))} />}
          <button type="button" title="edit this panel" aria-label={`edit ${titleOf(panel)}`} onClick={() => begin(panel, panel)}><Icon name="edit" /></button>
        </>
      }
    />
  );
  const isFixed = !source.value!.isLive; // a report computes nothing anew
  const add = !isFixed && <button type="button" onClick={() => begin(newPanel(), null)}>add panel</button>;
  if (!panels.length && !edited.value) {
    if (isFixed) return null;
    return <div class="own-none">{add}<span class="note">several metrics in one chart, or an expression such as <code>train/loss - val/loss</code></span></div>;
  }
  return (
    <Section title="Custom panels" note={<KeptNote project={project} />} actions={add}>
      {edited.value && (
        <PanelForm
          key={edited.value.panel.id}
          panel={edited.value.panel}
          axes={axes}
          error={error.value}
          onChange={(panel) => (edited.value = { ...edited.value!, panel })}
          onSave={() => {
            const { panel, before } = edited.value!;
            void keep((view) => putPanel(view, panel, before));
          }}
          onCancel={() => (edited.value = null)}
          onRemove={edited.value.before ? () => void keep((view) => removePanel(view, edited.value!.panel.id)) : undefined}
        >
          {edited.value.panel.items.length > 0 && <OwnPanelChart panel={edited.value.panel} axis={edited.value.panel.x || axis} smoothing={smoothing} />}
        </PanelForm>
      )}
      <div class="charts">{panels.map((panel, at) => panel.id !== edited.value?.panel.id && chart(panel, at))}</div>
    </Section>
  );
}

// Where pins and panels are kept, and what is wrong with that.
export function KeptNote({ project }: { project: string }) {
  const kept = keptView(project);
  if (!kept || !source.value!.isLive) return null;
  const { view, place, problem } = kept;
  return (
    <>
      {(place === "project" || view.is_kept) && `saved with the runs of ${project}`}
      {place === "browser" && <span title="to save changes with the runs for everyone: trainvitals serve --allow-edit">{view.is_kept ? ", changes in this browser only" : "saved in this browser only"}</span>}
      {problem && <span class="kept-problem" role="status">{problem}</span>}
    </>
  );
}

export function EarlierButton({ title, onClick }: { title: string; onClick(): void }) {
  return <button type="button" title="move one place forward" aria-label={`move ${title} forward`} onClick={onClick}><Icon name="earlier" /></button>;
}

function newPanel(): OwnPanel {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", items: [], x: "" };
}

interface FormProps {
  panel: OwnPanel;
  axes: string[];
  error: Error | null;
  onChange(panel: OwnPanel): void;
  onSave(): void;
  onCancel(): void;
  onRemove?(): void;
  children: preact.ComponentChildren;
}

function PanelForm({ panel, axes, error, onChange, onSave, onCancel, onRemove, children }: FormProps) {
  return (
    <form
      class="panel-form"
      aria-label="panel"
      onSubmit={(event) => {
        event.preventDefault();
        onSave();
      }}
      onKeyDown={(event) => event.key === "Escape" && onCancel()}
    >
      <div class="panel-fields">
        <label>title<input type="text" value={panel.title} maxLength={200} placeholder={titleOf({ ...panel, title: "" })} onInput={(event) => onChange({ ...panel, title: event.currentTarget.value })} /></label>
        <label>
          metrics and expressions, one per line
          <textarea rows={4} spellcheck={false} autoFocus placeholder={"train/loss\nval/*\nema(train/loss, 0.9) - val/loss"} onInput={(event) => onChange({ ...panel, items: parseItems(event.currentTarget.value) })}>{panel.items.join("\n")}</textarea>
        </label>
        <label>
          x
          <select value={panel.x} aria-label="x of the panel" onChange={(event) => onChange({ ...panel, x: event.currentTarget.value })}>
            {[["", "same as the page"], ["step", "step"], ["time", "time"], ["relative", "time since start"], ...axes.map((name) => [name, name])].map(([value, title]) => <option key={value} value={value}>{title}</option>)}
          </select>
        </label>
        {error && <Problem error={error instanceof ChangedMeanwhile ? new SourceError(409, error.message, "save again to replace it, or cancel to keep theirs") : error} />}
        <div class="panel-buttons">
          <button type="submit" class="primary" disabled={!panel.items.length}>save</button>
          <button type="button" onClick={onCancel}>cancel</button>
          {onRemove && <button type="button" class="danger" onClick={onRemove}>remove</button>}
        </div>
      </div>
      <div class="panel-preview">{children}</div>
    </form>
  );
}

interface ChartProps {
  panel: OwnPanel;
  axis: string;
  smoothing: number;
  marks?: Mark[];
  actions?: preact.ComponentChildren;
}

function OwnPanelChart({ panel, axis, smoothing, marks, actions }: ChartProps) {
  const [place, near] = useNear<HTMLDivElement>();
  const zoomed = zoomOn(axis);
  const asked = useRef<SeriesQuery | null>(null);
  if (near && zoomed !== undefined) asked.current = { names: [], chosen: panel.items, table: "training", x: axis, points: POINTS, start: zoomed?.start, end: zoomed?.end };
  const { series, error, problems } = useFeed(run.value?.key ?? null, asked.current).value;
  const title = titleOf(panel);
  return (
    <div ref={place} class="panel-place">
      {error && <Problem error={error} />}
      {series ? (
        <Chart title={title} help={panel.items.join("\n")} series={series} titles={uniqueTitles(series.map((item) => ownTitle(item.name, seriesTitle({ ...item, name: "" }, series.map((other) => ({ ...other, name: "" })), ["rank"]))))} axis={axis} canLog smoothing={smoothing} marks={marks} stale={stale.value} actions={actions} />
      ) : (
        !error && <div class="chart waiting" style={{ height: `${heightOf({}) + 34}px` }}><h3>{title}</h3></div>
      )}
      {problems?.map((problem) => <p class="note" key={problem}>{problem}</p>)}
    </div>
  );
}

// As the user wrote it: a short form would not tell train/loss from val/loss.
function ownTitle(name: string, subject: string): string {
  return subject ? `${name} ${subject}` : name;
}

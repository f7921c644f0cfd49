// The user's own panels of a project, and the form that makes one.
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { useFeed } from "../data/feed.ts";
import { remember, remembered, run, stale, zoomOn } from "../data/store.ts";
import type { SeriesQuery } from "../data/source.ts";
import type { Mark } from "../logic/marks.ts";
import { seriesTitle } from "../logic/metrics.ts";
import { parseItems, parsePanels, putPanel, titleOf, type OwnPanel } from "../logic/own_panels.ts";
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

export function OwnPanels({ axis, axes, smoothing, marks }: Props) {
  const project = run.value!.project;
  const place = `panels:${project}`;
  const panels = useSignal<OwnPanel[]>(parsePanels(remembered(place)));
  const edited = useSignal<OwnPanel | null>(null);
  const keep = (next: OwnPanel[]) => {
    panels.value = next;
    edited.value = null;
    remember(place, JSON.stringify(next));
  };
  const chart = (panel: OwnPanel) => (
    <OwnPanelChart
      key={panel.id}
      panel={panel}
      axis={panel.x || axis}
      smoothing={smoothing}
      marks={panel.x && panel.x !== axis ? undefined : marks}
      actions={<button type="button" title="edit this panel" aria-label={`edit ${titleOf(panel)}`} onClick={() => (edited.value = panel)}><Icon name="edit" /></button>}
    />
  );
  const isNew = edited.value !== null && !panels.value.some((panel) => panel.id === edited.value!.id);
  if (!panels.value.length && !edited.value) {
    return <div class="own-none"><button type="button" onClick={() => (edited.value = newPanel())}>add panel</button><span class="note">several metrics in one chart, or an expression such as <code>train/loss - val/loss</code></span></div>;
  }
  return (
    <Section title="Own panels" note={`project ${project}, in this browser`} actions={<button type="button" onClick={() => (edited.value = newPanel())}>add panel</button>}>
      {edited.value && (
        <PanelForm
          key={edited.value.id}
          panel={edited.value}
          axes={axes}
          onChange={(panel) => (edited.value = panel)}
          onSave={() => keep(putPanel(panels.value, edited.value!))}
          onCancel={() => (edited.value = null)}
          onRemove={isNew ? undefined : () => keep(panels.value.filter((panel) => panel.id !== edited.value!.id))}
        >
          {edited.value.items.length > 0 && <OwnPanelChart panel={edited.value} axis={edited.value.x || axis} smoothing={smoothing} />}
        </PanelForm>
      )}
      <div class="charts">{panels.value.filter((panel) => panel.id !== edited.value?.id).map(chart)}</div>
    </Section>
  );
}

function newPanel(): OwnPanel {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", items: [], x: "" };
}

interface FormProps {
  panel: OwnPanel;
  axes: string[];
  onChange(panel: OwnPanel): void;
  onSave(): void;
  onCancel(): void;
  onRemove?(): void;
  children: preact.ComponentChildren;
}

function PanelForm({ panel, axes, onChange, onSave, onCancel, onRemove, children }: FormProps) {
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
            {[["", "as the page"], ["step", "step"], ["time", "time"], ["relative", "time since start"], ...axes.map((name) => [name, name])].map(([value, title]) => <option key={value} value={value}>{title}</option>)}
          </select>
        </label>
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

import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { panels, remember, remembered, run, setQuery, source, usePageRoute } from "../data/page.ts";
import { whole as printed } from "../data/store.ts";
import type { Layers, Panel } from "../data/types.ts";
import { changeView, keptView } from "../data/view.ts";
import { formatCount } from "../logic/format.ts";
import { groupByPrefix, inOrder, search } from "../logic/metrics.ts";
import { axisNames, moveEarlier, withName } from "../logic/own_panels.ts";
import { first } from "../logic/route.ts";
import { Heatmap } from "../ui/heatmap.tsx";
import { HistogramChart } from "../ui/histogram.tsx";
import { Icon } from "../ui/icons.tsx";
import { useMarks } from "../ui/marks.ts";
import { EarlierButton, KeptNote, OwnPanels } from "../ui/own_panels.tsx";
import { namesOf, panelOf, PanelChart } from "../ui/panel.tsx";
import { Choice, Empty, Search, Section, Smoothing, smoothingOf } from "../ui/parts.tsx";

const PAGE = 48;
const HIDDEN = new Set(["gradient_norm", "gradient_max", "weight_norm", "update_ratio", "gradient_nan", "gradient_inf"]);
const AXES = [["step", "step"], ["time", "time"], ["relative", "time since start"]] as const;

export function Training() {
  const route = usePageRoute();
  const known = run.value!;
  const names = known.tables.training?.names ?? [];
  const axis = first(route, "x") ?? "step";
  const text = first(route, "q") ?? "";
  const smoothing = smoothingOf(route);
  const spread = (first(route, "ranks") ?? "auto") as "auto" | "band" | "lines";
  const pinned = route.query.get("pin") ?? keptView(known.project)?.view.pins ?? [];
  const pin = (change: (names: string[]) => string[]) => {
    setQuery({ pin: change(pinned) }, true);
    void changeView(known.project, (view) => ({ ...view, pins: change(view.pins) }));
  };
  const marks = useMarks(axis);
  const [folded, fold] = useNames("folded");
  const found = new Set(search(names, text));
  const declared = (panels.value?.panels ?? []).filter((panel) => panel.table === "training" && namesOf(panel).some((name) => found.has(name)));
  const rl = declared.filter((panel) => panel.group === "rl");
  // By the name that decides the group: panels that stay whole, then a chart for each remaining metric.
  const whole = new Map(declared.filter((panel) => panel.group !== "rl" && isWhole(namesOf(panel))).map((panel) => [namesOf(panel)[0], panel]));
  const drawn = new Set([...rl, ...whole.values()].flatMap((panel) => namesOf(panel)));
  const usual = declared.flatMap((panel) => namesOf(panel)).filter((name) => found.has(name));
  const alone = [...new Set([...usual, ...[...found].sort(inOrder)])].filter((name) => !drawn.has(name) && name !== "step");
  const groups = groupByPrefix([...whole.keys(), ...alone], HIDDEN);
  const metricAxes = axisNames(names, HIDDEN);
  const axes: (readonly [string, string])[] = [...AXES, ...metricAxes.map((name) => [name, name] as const)];
  if (!axes.some(([name]) => name === axis)) axes.push([axis, axis]);
  const chart = (panel: Panel, name: string, more?: preact.ComponentChildren) => (
    <PanelChart
      key={panel.id}
      panel={panel}
      axis={axis}
      smoothing={smoothing}
      spread={spread}
      marks={marks}
      actions={
        <>{more}<button type="button" class={pinned.includes(name) ? "on" : ""} aria-pressed={pinned.includes(name)} title="pin to the top" aria-label={`pin ${name}`} onClick={() => pin((names) => withName(names, name, !pinned.includes(name)))}>
          <Icon name="pin" />
        </button></>
      }
    />
  );
  const pins = pinned.filter((name) => names.includes(name));
  if (!names.length) {
    return (
      <Empty title="No metrics logged yet">
        <p>Log from the training loop and the charts appear here:</p>
        <p><code>run.log(&#123;"loss": loss&#125;, step=step)</code></p>
      </Empty>
    );
  }
  return (
    <>
      <div class="controls">
        <Search label="search metrics" placeholder={`search ${formatCount(names.length, "metric")}   /`} value={text} onInput={(value) => setQuery({ q: value || undefined }, true)} />
        <Choice label="x" value={axis} options={axes} onChange={(value) => setQuery({ x: value })} />
        <Smoothing value={smoothing} />
        {known.ranks.length > 1 && (
          <Choice label="ranks" value={spread} options={[["auto", "auto"], ["band", "min, mean, max"], ["lines", "one per rank"]]} onChange={(value) => setQuery({ ranks: value })} />
        )}
      </div>
      {pins.length > 0 && !text && <Section title="Pinned" note={<KeptNote project={known.project} />}><div class="charts">{pins.map((name, at) => chart({ ...panelOf(name), id: `pin:${name}` }, name, at > 0 && <EarlierButton title={name} onClick={() => pin((names) => moveEarlier(names, names.indexOf(name)))} />))}</div></Section>}
      {!text && <OwnPanels key={known.project} axis={axis} axes={metricAxes} smoothing={smoothing} marks={marks} />}
      {rl.length > 0 && <Section title="Reinforcement learning"><div class="charts">{rl.map((panel) => chart(panel, namesOf(panel)[0]))}</div></Section>}
      {groups.map((group) => {
        const title = group.name || "Metrics";
        return <MetricGroup key={title} title={title} names={group.metrics} folded={folded.includes(title) && !text && !printed.value} onFold={() => fold(title)} chart={(name) => chart(whole.get(name) ?? panelOf(name), name)} />;
      })}
      {!found.size && <Empty title={`No metrics match “${text}”`}><p>{formatCount(names.length, "metric")} in total.</p></Empty>}
      {Object.keys(known.layers).length > 0 && !text && <LayerMap runKey={known.key} measures={Object.keys(known.layers)} step={known.step} />}
      {known.histograms.length > 0 && !text && <Histograms runKey={known.key} names={known.histograms} />}
    </>
  );
}

// A panel of several metrics of one group is drawn as it was declared; else each metric is with its group.
function isWhole(names: string[]): boolean {
  return names.length > 1 && groupByPrefix(names).length === 1;
}

// Names that this browser remembers, and how to add one or take it out.
function useNames(key: string): [string[], (name: string) => void] {
  const names = useSignal<string[]>(parseNames(remembered(key)));
  const toggle = (name: string) => {
    names.value = names.value.includes(name) ? names.value.filter((item) => item !== name) : [...names.value, name];
    remember(key, JSON.stringify(names.value));
  };
  return [names.value, toggle];
}

function parseNames(text: string | null): string[] {
  try {
    const found: unknown = JSON.parse(text ?? "[]");
    return Array.isArray(found) ? found.filter((item): item is string => typeof item === "string") : [];
  } catch {
    return [];
  }
}

function MetricGroup({ title, names, folded, onFold, chart }: { title: string; names: string[]; folded: boolean; onFold(): void; chart: (name: string) => preact.JSX.Element }) {
  const [limit, setLimit] = useState(PAGE);
  return (
    <Section title={title} note={`${names.length.toLocaleString("en-US")}`} folded={folded} onFold={onFold}>
      {!folded && <div class="charts">{names.slice(0, limit).map(chart)}</div>}
      {!folded && names.length > limit && (
        <button type="button" class="more" onClick={() => setLimit(limit + PAGE)}>show {Math.min(PAGE, names.length - limit)} more ({(names.length - limit).toLocaleString("en-US")} hidden)</button>
      )}
    </Section>
  );
}

function LayerMap({ runKey, measures, step }: { runKey: string; measures: string[]; step: number | null }) {
  const [measure, setMeasure] = useState(measures.includes("gradient_norm") ? "gradient_norm" : measures[0]);
  const [layers, setLayers] = useState<Layers | null>(null);
  const bucket = Math.floor((step ?? 0) / 200);
  useEffect(() => {
    let current = true;
    source.value!.layers(runKey, measure, 240).then((answer) => current && setLayers(answer), () => {});
    return () => {
      current = false;
    };
  }, [runKey, measure, bucket]);
  return (
    <Section title="Layers" note={layers ? `${layers.layers.length}` : ""} actions={<Choice quiet label="measure of the layers" value={measure} options={measures.map((name) => [name, name.replaceAll("_", " ")] as const)} onChange={setMeasure} />}>
      {layers && layers.layers.length > 0 && <Heatmap title={`${measure.replaceAll("_", " ")} by layer and step`} rows={layers.layers} x={layers.x} values={layers.values} log />}
      {layers && layers.left_out > 0 && <p class="note">{formatCount(layers.left_out, "more layer")} not shown</p>}
    </Section>
  );
}

function Histograms({ runKey, names }: { runKey: string; names: string[] }) {
  const [name, setName] = useState(names[0]);
  return (
    <Section title="Histograms" actions={<Choice quiet label="histogram" value={name} options={names.map((item) => [item, item] as const)} onChange={setName} />}>
      <HistogramChart runKey={runKey} name={name} title={`${name}: share of elements by value and step`} />
    </Section>
  );
}

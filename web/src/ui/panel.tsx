// A panel declared in views/panels.py, or a custom metric, as a chart.
import { useFeed } from "../data/feed.ts";
import { panels, run, runError, stale, zoomOn } from "../data/store.ts";
import type { SeriesQuery } from "../data/source.ts";
import type { Metric, Panel } from "../data/types.ts";
import { findSpelling, groupByPrefix, panelNames, seriesTitle, titleName } from "../logic/metrics.ts";
import type { Mark } from "../logic/marks.ts";
import { Chart, heightOf } from "./chart.tsx";
import { Problem, useNear } from "./parts.tsx";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

const MANY = 12; // lines
export const POINTS = 1000;

export interface PanelChartProps {
  panel: Panel;
  axis: string;
  height?: number;
  smoothing?: number;
  spread?: "auto" | "band" | "lines";
  rank?: number;
  marks?: Mark[];
  actions?: ComponentChildren;
  points?: number;
  // Whether it is at the top of its page.
  atTop?: boolean;
}

function rowsOf(table: string): Map<string, Metric> {
  return new Map((panels.value?.metrics[table] ?? []).map((metric) => [metric.name, metric]));
}

function loggedIn(table: string): Set<string> {
  return new Set(run.value?.tables[table]?.names ?? []);
}

// Under which name the run logs a metric of the catalog.
export function spelling(table: string, name: string): string | undefined {
  return findSpelling(name, loggedIn(table), rowsOf(table));
}

export function namesOf(panel: Panel): string[] {
  return panelNames(panel, loggedIn(panel.table), rowsOf(panel.table));
}

// As title_of in views/panels.py: what is only the validation of a panel goes by the name it was logged with.
function panelTitle(panel: Panel, names: string[]): string {
  return names.length === 1 && panel.metrics.some((name) => name.includes("validation_")) && panel.metrics[0] !== names[0] && spelling(panel.table, panel.metrics[0]) === undefined ? names[0] : panel.title;
}

// A panel for an undeclared metric, as own_panel in views/panels.py.
export function ownPanel(name: string, table = "training"): Panel {
  const known = panels.value?.metrics[table]?.find((metric) => metric.name === name || metric.aliases.includes(name));
  return {
    id: `metric:${name}`, title: known?.name === name ? titleName(name) : name, group: table, table, metrics: [name], importance: 2, chart: "line",
    by: ["rank"], limit: null, low: null, high: null, log: true, log_first: false, smooth: !panels.value?.scheduled.includes(name), unit: known?.unit ?? "",
    rate: known?.kind === "counter" && name !== "step", thresholds: [],
  };
}

// A metric alone: drawn as its panel is, under the name it was logged with.
export function panelOf(name: string): Panel {
  const own = ownPanel(name);
  const declared = panels.value?.panels.find((panel) => panel.table === "training" && panel.chart === "line" && namesOf(panel).includes(name));
  if (!declared) return own;
  const group = groupByPrefix(namesOf(declared)).find((item) => item.metrics.includes(name));
  return { ...declared, id: own.id, metrics: [name], title: declared.metrics[0] === name && group?.metrics.length === 1 ? declared.title : own.title };
}

export function PanelChart(props: PanelChartProps) {
  const { panel } = props;
  const [place, near] = useNear<HTMLDivElement>(props.atTop);
  const known = run.value;
  const names = namesOf(panel);
  const title = panelTitle(panel, names);
  const limitName = panel.limit && known?.tables[panel.table]?.names.includes(panel.limit) ? panel.limit : null;
  const subjects = panel.table === "training" ? Math.max(known?.ranks.length ?? 1, 1) : (known?.tables[panel.table]?.labels.length ?? 1);
  const spread = props.spread ?? "auto";
  const band = panel.chart !== "stacked" && subjects > 1 && (spread === "band" || (spread === "auto" && subjects * names.length > MANY));
  const zoomed = zoomOn(props.axis);
  const asked = useRef<SeriesQuery | null>(null);
  const query: SeriesQuery | null = near && known
    ? zoomed === undefined ? asked.current : {
        names,
        table: panel.table,
        x: props.axis,
        points: panel.chart === "stacked" ? 300 : (props.points ?? POINTS),
        start: zoomed?.start,
        end: zoomed?.end,
        band,
        rate: panel.rate,
        rank: panel.chart === "stacked" && panel.table === "training" ? 0 : props.rank,
      }
    : null;
  asked.current = query;
  const feed = useFeed(known?.key ?? null, query);
  const limitFeed = useFeed(known?.key ?? null, query && limitName ? { ...query, names: [limitName], rate: false, band: false, points: 4 } : null);
  const { series, error } = feed.value;
  const limits = limitFeed.value.series?.flatMap((item) => item.y.slice(-1)).filter((value): value is number => value !== null) ?? [];
  return (
    <div ref={place} class="panel-place">
      {error && !series && !runError.value ? <Problem error={error} /> : null}
      {series ? (
        <Chart
          title={title}
          series={series}
          titles={titlesOf(series, panel)}
          axis={props.axis}
          unit={panel.rate ? `${panel.unit}/s` : panel.unit}
          height={props.height}
          kind={panel.chart === "stacked" ? "stacked" : "line"}
          low={panel.low}
          high={panel.high}
          log={panel.log_first}
          canLog={panel.log}
          smoothing={panel.smooth ? props.smoothing : 0}
          limit={limits.length ? Math.min(...limits) : null}
          marks={props.marks}
          stale={stale.value}
          actions={props.actions}
          help={helpOf(panel)}
        />
      ) : (
        (!error || runError.value) && <div class="chart waiting" style={{ height: `${heightOf(props) + 34}px` }}><h3>{title}</h3></div>
      )}
    </div>
  );
}

function titlesOf(series: Parameters<typeof seriesTitle>[1], panel: Panel): string[] {
  // Parts of a whole are named by their last word: gen, not timing_s/gen.
  const ends = series.map((item) => item.name.split("/").at(-1)!);
  const short = panel.chart === "stacked" && new Set(ends).size === new Set(series.map((item) => item.name)).size;
  const named = short ? series.map((item, at) => ({ ...item, name: ends[at] })) : series;
  return uniqueTitles(named.map((item) => seriesTitle(item, named, panel.by)));
}

// Two lines must not share a title: it is how they are hidden and shown.
export function uniqueTitles(titles: string[]): string[] {
  const seen = new Map<string, number>();
  return titles.map((title) => {
    const count = (seen.get(title) ?? 0) + 1;
    seen.set(title, count);
    return count > 1 ? `${title} (${count})` : title;
  });
}

function helpOf(panel: Panel): string {
  const metrics = panels.value?.metrics[panel.table] ?? [];
  return panel.metrics.map((name) => metrics.find((metric) => metric.name === name)?.help).filter(Boolean).join("; ");
}

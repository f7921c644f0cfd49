// Charts of all runs that the table's filter finds: a line per run, or per group with its mean and band.
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { setQuery, source, usePageRoute } from "../data/page.ts";
import { dark, go, zoom } from "../data/store.ts";
import type { Curve, Curves, Line, Row } from "../data/types.ts";
import { LIGHT, lineStyle, swatch, type LineStyle } from "../logic/colors.ts";
import { formatCount } from "../logic/format.ts";
import { paintedLines, paintLine, pinnedLines, showLines, shownLines, togglePin, type Drawable } from "../logic/lines.ts";
import { search } from "../logic/metrics.ts";
import { first, number } from "../logic/route.ts";
import { smooth } from "../logic/smooth.ts";
import { columnName, type ColumnId } from "../logic/table.ts";
import { Icon } from "../ui/icons.tsx";
import { ManyLines, type ManyLine } from "../ui/many.tsx";
import { Menu } from "../ui/menu.tsx";
import { NameChoice } from "../ui/name_choice.tsx";
import { panelOf } from "../ui/panel.tsx";
import { Choice, Link, Loading, Problem, runRoute, Smoothing, smoothingOf, Simulated } from "../ui/parts.tsx";

const AXES = [["step", "step"], ["relative", "time since start"], ["time", "time"]] as const;
const BANDS = [["range", "min–max"], ["std", "± standard deviation"], ["confidence", "95 % confidence of the mean"]] as const;
const EACH_RUN = "run";
const GROUPINGS = [[EACH_RUN, "each run"], ["experiment", "config without seed"], ["tags", "tag"], ["project", "project"], ["host", "host"], ["attempt", "attempt"], ["status", "status"]] as const;
const MOST_GROUPINGS = 60;
const MOST_AXES = 60;
const AGAIN_MS = 5000;
const POINTS = 500; // of each line; a zoom asks for those of its range
const DASHED = 24; // lines, up to which dashes tell those of one color apart
const NONE: Line[] = [];

export function RunCharts({ rows, possible }: { rows: Row[]; possible: ColumnId[] }) {
  const route = usePageRoute();
  const [q, machine, project, status] = ["q", "machine", "project", "status"].map((id) => first(route, id));
  const axis = first(route, "x") ?? "step";
  // Seeds of an experiment are one line unless the user wants otherwise.
  const by = first(route, "by") ?? "auto";
  const band = first(route, "band") ?? "range";
  const names = route.query.get("metric") ?? [];
  const points = number(route, "points") ?? POINTS;
  const zoomed = zoom.value?.axis === axis ? zoom.value : null;
  const [answer, setAnswer] = useState<Curves | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [round, setRound] = useState(0);
  const pointed = useSignal<string | null>(null);
  const live = rows.filter((row) => row.live).length;
  useEffect(() => {
    let current = true;
    source.value!.curves({ q, machine, project, status, names, x: axis, start: zoomed?.start, end: zoomed?.end, points, group: by === EACH_RUN ? undefined : by, band }).then(
      (found) => current && (setAnswer(found), setError(null)),
      (problem) => current && setError(problem),
    );
    return () => {
      current = false;
    };
  }, [q, machine, project, status, axis, by, band, names.join("\n"), points, zoomed?.start, zoomed?.end, round, rows.length, live]);
  const anyLive = live > 0;
  useEffect(() => {
    if (!anyLive) return;
    const timer = setInterval(() => document.visibilityState === "visible" && setRound((value) => value + 1), AGAIN_MS);
    return () => clearInterval(timer);
  }, [anyLive]);

  const group = answer?.group ?? "";
  const smoothing = smoothingOf(route);
  const lines = answer?.lines ?? NONE;
  const ids = lines.map((line) => line.id);
  const [shown, pinned, painted] = [shownLines(route, ids), pinnedLines(route), paintedLines(route)];
  const look = JSON.stringify([[...shown], [...pinned], [...painted], dark.value, smoothing]);
  const drawn = useMemo(() => {
    const found = new Map<string, ManyLine[]>();
    for (const series of answer?.series ?? []) {
      const line = lines[series.line];
      if (!shown.has(line.id)) continue;
      const item = { id: line.id, title: line.title, style: styleOf(line.id, series.line, painted, lines.length), pinned: pinned.has(line.id), runs: line.runs.length, series, drawn: smoothed(series, panelOf(series.name).smooth ? smoothing : 0) };
      const others = found.get(series.name);
      if (others) others.push(item);
      else found.set(series.name, [item]);
    }
    return found;
  }, [answer, look]);

  const offered = useMemo(() => [...new Set(rows.flatMap((row) => Object.keys(row.summary)))], [rows]);
  const axes = [...new Set([axis, ...offered.filter(isCounter), ...offered])].filter((name) => !AXES.some(([id]) => id === name)).slice(0, MOST_AXES);
  const configs = possible.filter((id) => id.startsWith("config.")).slice(0, MOST_GROUPINGS);
  const chosen = names.length ? names : (answer?.names ?? []);
  const nothing = (name: string) => (answer?.series.some((series) => series.name === name) ? "all lines are hidden" : offered.includes(name) ? (zoomed ? "no values in this range" : `no run logged both ${name} and ${answer?.axis}`) : `none of these runs logged ${name}`);
  return (
    <>
      <h2 class="sr">Charts</h2>
      <div class="controls">
        <Choice label="lines" value={group || EACH_RUN} options={[...GROUPINGS, ...configs.map((id): [string, string] => [id, columnName(id)])]} onChange={(value) => setQuery({ by: value, on: undefined, off: undefined, pin: undefined, paint: undefined })} />
        {group && <Choice label="band" value={band} options={BANDS} onChange={(value) => setQuery({ band: value })} />}
        <Choice label="x" value={axis} options={[...AXES, ...axes.map((name): [string, string] => [name, name])]} onChange={(value) => setQuery({ x: value, zx: undefined, from: undefined, to: undefined })} />
        <Menu title="metrics">{() => <NameChoice noun="metric" offered={offered} chosen={chosen} onChange={(metric) => setQuery({ metric }, true)} />}</Menu>
        <Smoothing value={smoothing} />
        {answer && <span class="note">{group ? `${formatCount(lines.length, "group")} of ${formatCount(answer.total - answer.left_out, "run")}` : formatCount(lines.length, "run")}{answer.left_out > 0 && `; the ${answer.left_out.toLocaleString("en-US")} oldest not shown`}</span>}
        <Simulated rows={rows} />
      </div>
      {error && <Problem error={error} />}
      {!answer && !error && <Loading />}
      {answer && (
        <div class="run-charts">
          <div class="charts">
            {answer.names.map((name) => {
              const panel = panelOf(name);
              return <ManyLines key={name} title={panel.title} help={name} lines={drawn.get(name) ?? []} axis={answer.axis} unit={panel.unit} log={panel.log_first} canLog={panel.log} nothing={nothing(name)} pointed={pointed} />;
            })}
          </div>
          <Lines lines={lines} shown={shown} pinned={pinned} painted={painted} grouped={group !== ""} pointed={pointed} />
        </div>
      )}
    </>
  );
}

// What is counted while a run trains: the usual alternatives to steps.
function isCounter(name: string): boolean {
  return /(^|[/_.])(epochs?|tokens?|samples?|examples?|images?|frames?|episodes?|iter(ation)?s?|global_step|num_.*)$/i.test(name);
}

// Kept until the answer changes, so that hiding a line smooths nothing again.
const smoothedLines = new WeakMap<Curve, { amount: number; drawn: Drawable }>();

function smoothed(series: Curve, amount: number): Drawable {
  if (!(amount > 0)) return series;
  const known = smoothedLines.get(series);
  if (known?.amount === amount) return known.drawn;
  const one = (y: ArrayLike<number | null>) => smooth(series.x, y, amount);
  // A band with its mean, which would else leave it.
  const drawn = series.low && series.high ? { x: series.x, y: one(series.y), low: one(series.low), high: one(series.high) } : { x: series.x, y: one(series.y) };
  smoothedLines.set(series, { amount, drawn });
  return drawn;
}

// Of more lines than `DASHED`, dashes would tell nothing apart, and take long to draw.
function styleOf(id: string, at: number, painted: ReadonlyMap<string, number>, count: number): LineStyle {
  const place = painted.get(id) ?? at;
  return lineStyle(count > DASHED ? place % LIGHT.length : place, dark.value);
}

// The legend of all charts at once.
function Lines({ lines, shown, pinned, painted, grouped, pointed }: { lines: Line[]; shown: ReadonlySet<string>; pinned: ReadonlySet<string>; painted: ReadonlyMap<string, number>; grouped: boolean; pointed: Signal<string | null> }) {
  const route = usePageRoute();
  const [text, setText] = useState("");
  const ids = lines.map((line) => line.id);
  const found = new Set(search(lines.map((line) => line.title), text));
  const listed = lines.map((line, at) => ({ line, at })).filter(({ line }) => found.has(line.title));
  listed.sort((a, b) => Number(pinned.has(b.line.id)) - Number(pinned.has(a.line.id)) || a.at - b.at);
  const show = (wanted: ReadonlySet<string>) => go(showLines(route, ids, wanted), true);
  const toggle = (id: string, only: boolean) => {
    if (only) return show(shown.size === 1 && shown.has(id) ? new Set(ids) : new Set([id]));
    const next = new Set(shown);
    if (!next.delete(id)) next.add(id);
    show(next);
  };
  const some = listed.map(({ line }) => line.id);
  return (
    <aside class="lines" aria-label="lines">
      <header>
        <input class="search" type="search" aria-label="search lines" placeholder={`search ${formatCount(lines.length, grouped ? "group" : "run")}`} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <button type="button" title="show those listed" onClick={() => show(new Set([...shown, ...some]))}>show all</button>
        <button type="button" title="hide all listed, except pinned runs" onClick={() => show(new Set([...shown].filter((id) => !some.includes(id) || pinned.has(id))))}>hide all</button>
      </header>
      <ul onMouseLeave={() => (pointed.value = null)}>
        {listed.map(({ line, at }) => (
          <li key={line.id} class={shown.has(line.id) ? "" : "off"} onMouseEnter={() => (pointed.value = line.id)}>
            <input type="checkbox" aria-label={`show ${line.title}`} title="Shift-click to show only this" checked={shown.has(line.id)} onClick={(event) => toggle(line.id, event.shiftKey)} />
            <button type="button" class="paint" aria-label={`color of ${line.title}`} title="next color" style={{ background: swatch(styleOf(line.id, at, painted, lines.length)) }} onClick={() => go(paintLine(route, line.id, ((painted.get(line.id) ?? at) + 1) % LIGHT.length), true)} />
            {grouped ? <span class="line-name" title={line.title}>{line.title}</span> : <Link class="line-name" to={runRoute(line.runs[0])} title={line.title}>{line.title}</Link>}
            {grouped && <span class="dim" title={formatCount(line.runs.length, "run")}>n = {line.runs.length}</span>}
            <button type="button" class={`pin ${pinned.has(line.id) ? "on" : ""}`} aria-pressed={pinned.has(line.id)} aria-label={`pin ${line.title}`} title="pin: on top and bold" onClick={() => go(togglePin(route, line.id), true)}><Icon name="pin" /></button>
          </li>
        ))}
      </ul>
      {listed.length === 0 && <p class="dim">No lines match “{text}”</p>}
    </aside>
  );
}

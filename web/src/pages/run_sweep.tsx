// A sweep: which parameter mattered, how every run came out, and which was the best; of what the table's filter finds.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { setQuery, source, usePageRoute } from "../data/page.ts";
import { go } from "../data/store.ts";
import type { Importance, Row, Sweep, Value } from "../data/types.ts";
import { formatConfig, formatCount, formatPercent, formatValue, toNumber } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { formatBrushes, isWithin, moveKey, parseBrushes, scaleOf, shareOf, spreadShareOf, type Scale } from "../logic/sweep.ts";
import { columnTitles, compareCells, type ColumnId } from "../logic/table.ts";
import { Menu } from "../ui/menu.tsx";
import { NameChoice } from "../ui/name_choice.tsx";
import { Parallel, Scatter, type Spot } from "../ui/parallel.tsx";
import { Choice, Empty, Link, Loading, Problem, runRoute, Section, Simulated } from "../ui/parts.tsx";

const TAKES = [["last", "last"], ["min", "min"], ["max", "max"]] as const;
const MOST_AXES = 8;

export function RunSweep({ rows }: { rows: Row[] }) {
  const route = usePageRoute();
  const [q, machine, project, status, name] = ["q", "machine", "project", "status", "of"].map((id) => first(route, id));
  const take = first(route, "take") ?? "last";
  const [answer, setAnswer] = useState<Sweep | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const pointed = useSignal<string | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.sweep({ q, machine, project, status, name, take }).then(
      (found) => current && (setAnswer(found), setError(null)),
      (problem) => current && setError(problem),
    );
    return () => {
      current = false;
    };
  }, [q, machine, project, status, name, take, rows]);
  const brushTexts = route.query.get("brush") ?? [];
  const wanted = route.query.get("axes") ?? [];
  const [acrossId, upId] = [first(route, "across"), first(route, "up")];
  const view = useMemo(() => {
    if (!answer) return null;
    const byKey = new Map(rows.map((row) => [row.key, row]));
    const known = answer.runs.flatMap((key, at) => (byKey.has(key) ? [{ row: byKey.get(key)!, value: answer.values[at] }] : []));
    const outcome: ColumnId = `summary.${answer.name}`;
    type Item = (typeof known)[number];
    const valueOn = (id: ColumnId, item: Item): unknown => (id === outcome ? item.value : compareCells.read(item.row, id));
    const scales = new Map<ColumnId, Scale | null>();
    const scaleOn = (id: ColumnId): Scale | null => {
      if (!scales.has(id)) {
        const values = known.map((item) => valueOn(id, item));
        scales.set(id, scaleOf(id, id.startsWith("summary.") ? values.map((value) => toNumber(value as Value)).filter((value) => value !== null && Number.isFinite(value)) : values));
      }
      return scales.get(id)!;
    };
    const parameters = answer.importances.map((item): ColumnId => `config.${item.key}`);
    const offered = [...parameters, outcome, ...answer.names.filter((name) => name !== answer.name).map((name): ColumnId => `summary.${name}`)];
    const usual = [...parameters.filter((id) => scaleOn(id)).slice(0, MOST_AXES), outcome];
    const axes = (wanted.length ? wanted : usual).flatMap((id) => scaleOn(id) ?? []);
    const brushes = new Map([...parseBrushes(brushTexts)].filter(([key]) => axes.some((scale) => scale.key === key)));
    const metric = scaleOn(outcome);
    const spots = known.map((item): Spot => {
      const shares = axes.map((scale) => shareOf(scale, valueOn(scale.key, item)));
      return { key: item.row.key, title: item.row.name, shares, color: metric ? shareOf(metric, item.value) : null, within: isWithin(axes, shares, brushes), text: formatValue(item.value, answer.unit) };
    });
    const over: [ColumnId, ColumnId] = [acrossId ?? parameters[0] ?? offered.find((id) => id !== outcome) ?? "", upId ?? outcome];
    const [across, up] = over.map((id) => (id ? scaleOn(id) : null));
    const dots = across && up ? spots.map((spot, at) => ({ ...spot, shares: [across, up].map((scale) => spreadShareOf(scale, valueOn(scale.key, known[at]), spot.key)) })) : [];
    return { axes, brushes, spots, over, across, up, dots, byKey, offered, titles: columnTitles([...new Set([...offered, ...wanted, ...over])], []) };
  }, [answer, rows, acrossId, upId, wanted.join("\n"), brushTexts.join("\n")]);
  if (error && !answer) return <Problem error={error} />;
  if (!answer || !view) return <Loading />;
  if (!answer.name) return <Empty title="Nothing to compare"><p>None of these runs logged a metric.</p></Empty>;
  if (answer.runs.length < 2) return <Empty title="Nothing to compare"><p>A sweep needs at least two runs.</p></Empty>;
  const best = answer.best ? view.byKey.get(answer.best) : undefined;
  const under = pointed.value ? view.spots.find((spot) => spot.key === pointed.value) : undefined;
  const within = view.spots.filter((spot) => spot.within).length;
  const keys = view.axes.map((scale) => scale.key);
  const over = view.over.map((id) => view.titles.get(id) ?? "");
  const columns = [...view.titles].filter(([id]) => id).map(([id, title]): [string, string] => [id, title]);
  const open = (key: string) => go(runRoute(key));
  const brush = (key: string, range: [number, number] | null) => {
    const next = new Map(view.brushes);
    if (range) next.set(key, range);
    else next.delete(key);
    setQuery({ brush: formatBrushes(next) }, true);
  };
  return (
    <>
      <div class="controls">
        <Choice label="metric" value={answer.name} options={[...new Set([answer.name, ...answer.names])].map((item) => [item, item] as const)} onChange={(value) => setQuery({ of: value, brush: undefined, axes: undefined, up: undefined })} />
        <Choice label="value" value={take} options={TAKES} onChange={(value) => setQuery({ take: value, brush: undefined })} />
        {best && <span class="best-run">best: <Link to={runRoute(best.key)}>{best.name}</Link> <b>{formatValue(answer.values[answer.runs.indexOf(best.key)], answer.unit)}</b></span>}
        <Simulated rows={rows} />
        {view.brushes.size > 0 && <><span class="note">{within.toLocaleString("en-US")} of {formatCount(view.spots.length, "run")} chosen</span><button type="button" onClick={() => setQuery({ brush: undefined }, true)}>clear ranges</button></>}
      </div>
      {error && <Problem error={error} />}
      <p class="sweep-tip note" role="status">{under ? `${under.title}: ${answer.name} ${under.text}; ${answer.importances.slice(0, 5).map((item) => `${item.key} ${formatConfig(view.byKey.get(under.key)!.config[item.key])}`).join(", ")}` : "Hover over a run to see its values, click to open it. Drag along an axis to select a range, drag its name to move it."}</p>
      {view.axes.length > 0 && (
        <Section title="Parallel coordinates" note={`color: ${answer.name}, dark is low`} actions={<Menu title="axes">{() => <NameChoice noun="column" offered={view.offered} titles={view.titles} chosen={keys} onChange={(axes) => setQuery({ axes }, true)} />}</Menu>}>
          <figure class="chart"><Parallel scales={view.axes} titles={view.titles} spots={view.spots} brushes={view.brushes} pointed={pointed} onBrush={brush} onMove={(key, place) => setQuery({ axes: moveKey(keys, key, place) }, true)} onOpen={open} /></figure>
        </Section>
      )}
      <div class="sweep-halves">
        <Section title="Importance" note="share of the variance explained by each parameter alone"><Importances found={answer.importances} chosen={view.over[0]} better={answer.better} />
          {answer.interactions.map((item) => <p class="note" key={`${item.first} ${item.second}`}>{item.first} and {item.second} explain {formatPercent(item.share)} more together than each alone: the best of one depends on the other.</p>)}
        </Section>
        <Section title={over[0] ? `${over[1]} by ${over[0]}` : "Scatter"} actions={over[0] && <><Choice label="x" value={view.over[0]} options={columns} onChange={(id) => setQuery({ across: id }, true)} /><Choice label="y" value={view.over[1]} options={columns} onChange={(id) => setQuery({ up: id }, true)} /></>}>
          {view.across && view.up ? <figure class="chart"><Scatter scales={[view.across, view.up]} titles={view.titles} spots={view.dots} best={answer.best} pointed={pointed} onOpen={open} /></figure> : <p class="note">{over[0] ? `These runs do not differ in ${view.across ? over[1] : over[0]}, or each has a different value.` : "These runs do not differ in their configuration."}</p>}
        </Section>
      </div>
    </>
  );
}

function Importances({ found, chosen, better }: { found: Importance[]; chosen: string; better: string | null }) {
  if (!found.length) return <p class="note">These runs do not differ in their configuration.</p>;
  const width = (share: number | null) => `${(share ?? 0) * 100}%`;
  const word = (item: Importance) => {
    if (item.direction === null || Math.abs(item.direction) < 0.2) return "";
    const helps = better && (item.direction < 0) === (better === "lower");
    return better ? (helps ? "higher is better" : "lower is better") : item.direction > 0 ? "rises with it" : "falls with it";
  };
  return (
    <ul class="importances">
      {found.map((item) => (
        <li key={item.key}>
          <button type="button" class={`config.${item.key}` === chosen ? "on" : ""} aria-pressed={`config.${item.key}` === chosen} title={`${formatCount(item.runs, "run")}${item.direction === null ? "" : `; rank correlation ${item.direction.toFixed(2)}`}`} onClick={() => setQuery({ across: `config.${item.key}` }, true)}>
            <span class="importance-name">{item.key}</span>
            {item.share === null ? <span class="dim importance-why">{item.reason}</span> : (
              <>
                <span class="importance-bar"><i style={{ width: width(item.share) }} /><u style={{ left: width(item.low), width: width((item.high ?? 0) - (item.low ?? 0)) }} /></span>
                <b>{formatPercent(item.share)}</b><span class="dim">{formatPercent(item.low)} – {formatPercent(item.high)}</span>
                <span class="dim">{word(item)}</span>
              </>
            )}
          </button>
        </li>
      ))}
    </ul>
  );
}

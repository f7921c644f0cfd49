// A sweep: which parameter mattered, how every run came out, and which was the best; of what the table's filter finds.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { setQuery, source, usePageRoute } from "../data/page.ts";
import { go } from "../data/store.ts";
import type { Importance, Row, Sweep } from "../data/types.ts";
import { formatConfig, formatCount, formatPercent, formatValue, toNumber } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { formatBrushes, isWithin, parseBrushes, scaleOf, shareOf, type Scale } from "../logic/sweep.ts";
import { Parallel, Scatter, type Spot } from "../ui/parallel.tsx";
import { Choice, Empty, Link, Loading, Problem, runRoute, Section } from "../ui/parts.tsx";

const TAKES = [["last", "last"], ["min", "lowest"], ["max", "highest"]] as const;
const MOST_AXES = 8;

export function RunSweep({ rows }: { rows: Row[] }) {
  const route = usePageRoute();
  const [q, project, status, name] = ["q", "project", "status", "of"].map((id) => first(route, id));
  const take = first(route, "take") ?? "last";
  const [answer, setAnswer] = useState<Sweep | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const pointed = useSignal<string | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.sweep({ q, project, status, name, take }).then(
      (found) => current && (setAnswer(found), setError(null)),
      (problem) => current && setError(problem),
    );
    return () => {
      current = false;
    };
  }, [q, project, status, name, take, rows]);
  const parameter = first(route, "param") ?? answer?.importances[0]?.key ?? "";
  const brushTexts = route.query.get("brush") ?? [];
  const view = useMemo(() => {
    if (!answer) return null;
    const byKey = new Map(rows.map((row) => [row.key, row]));
    const known = answer.runs.flatMap((key, at) => (byKey.has(key) ? [{ row: byKey.get(key)!, value: answer.values[at] }] : []));
    const metric = scaleOf(answer.name, known.map((item) => toNumber(item.value)).filter((value) => value !== null && Number.isFinite(value)));
    const configScale = (key: string) => scaleOf(key, known.map((item) => item.row.config[key]));
    const scales = answer.importances.map((item) => configScale(item.key)).filter((scale): scale is Scale => scale !== null).slice(0, MOST_AXES);
    const axes = metric ? [...scales, metric] : scales;
    const brushes = parseBrushes(brushTexts);
    const shareOn = (scale: Scale, item: (typeof known)[number]) => shareOf(scale, scale === metric ? item.value : item.row.config[scale.key]);
    const spots = known.map((item): Spot => {
      const shares = axes.map((scale) => shareOn(scale, item));
      return { key: item.row.key, title: item.row.name, shares, color: metric ? shareOn(metric, item) : null, within: isWithin(axes, shares, brushes), text: formatValue(item.value, answer.unit) };
    });
    const across = configScale(parameter);
    const dots = across && metric ? spots.map((spot, at) => ({ ...spot, shares: [shareOn(across, known[at]), shareOn(metric, known[at])] })) : [];
    return { axes, brushes, spots, across, metric, dots, byKey };
  }, [answer, rows, parameter, brushTexts.join("\n")]);
  if (error && !answer) return <Problem error={error} />;
  if (!answer || !view) return <Loading />;
  if (!answer.name) return <Empty title="Nothing to compare"><p>None of these runs logged a metric.</p></Empty>;
  const best = answer.best ? view.byKey.get(answer.best) : undefined;
  const under = pointed.value ? view.spots.find((spot) => spot.key === pointed.value) : undefined;
  const within = view.spots.filter((spot) => spot.within).length;
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
        <Choice label="metric" value={answer.name} options={[...new Set([answer.name, ...answer.names])].map((item) => [item, item] as const)} onChange={(value) => setQuery({ of: value, brush: undefined })} />
        <Choice label="value" value={take} options={TAKES} onChange={(value) => setQuery({ take: value, brush: undefined })} />
        {best && <span class="best-run">best: <Link to={runRoute(best.key)}>{best.name}</Link> <b>{formatValue(answer.values[answer.runs.indexOf(best.key)], answer.unit)}</b></span>}
        {view.brushes.size > 0 && <><span class="note">{within.toLocaleString("en-US")} of {formatCount(view.spots.length, "run")} chosen</span><button type="button" onClick={() => setQuery({ brush: undefined }, true)}>clear ranges</button></>}
      </div>
      {error && <Problem error={error} />}
      <p class="sweep-tip note" role="status">{under ? `${under.title}: ${answer.name} ${under.text}; ${answer.importances.slice(0, 5).map((item) => `${item.key} ${formatConfig(view.byKey.get(under.key)!.config[item.key])}`).join(", ")}` : "Point at a run for its values, click to open it. Drag along an axis to choose a range."}</p>
      {view.axes.length > 1 && <Section title="Parallel coordinates" note={`color: ${answer.name}, dark is low`}><figure class="chart"><Parallel scales={view.axes} spots={view.spots} brushes={view.brushes} pointed={pointed} onBrush={brush} onOpen={open} /></figure></Section>}
      <div class="sweep-halves">
        <Section title="Importance" note="share of the variance that each parameter explains alone"><Importances found={answer.importances} chosen={parameter} better={answer.better} />
          {answer.interactions.map((item) => <p class="note" key={`${item.first} ${item.second}`}>{item.first} and {item.second} explain {formatPercent(item.share)} more together than each alone: the best of one depends on the other.</p>)}
        </Section>
        <Section title={`${answer.name} by ${parameter}`}>
          {view.across && view.metric ? <figure class="chart"><Scatter scales={[view.across, view.metric]} spots={view.dots} best={answer.best} pointed={pointed} onOpen={open} /></figure> : <p class="note">{parameter ? "These runs do not differ in it, or each has a value of its own." : "These runs do not differ in their configuration."}</p>}
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
          <button type="button" class={item.key === chosen ? "on" : ""} aria-pressed={item.key === chosen} title={`${formatCount(item.runs, "run")}${item.direction === null ? "" : `; rank correlation ${item.direction.toFixed(2)}`}`} onClick={() => setQuery({ param: item.key }, true)}>
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

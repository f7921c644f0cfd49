// The custom panels of a project, with the lines of several of its runs.
import { useEffect, useState } from "preact/hooks";
import { source, zoom } from "../data/store.ts";
import type { OwnPanel, Row, Series } from "../data/types.ts";
import { keptView } from "../data/view.ts";
import { titleOf } from "../logic/own_panels.ts";
import { Chart, heightOf } from "./chart.tsx";
import { POINTS, uniqueTitles } from "./panel.tsx";
import { Section, useNear } from "./parts.tsx";

interface Props {
  rows: Row[];
  titles: string[];
  axis: string;
  smoothing: number;
  round: number; // of what is live: another one reads again
}

export function ComparedPanels(props: Props) {
  const [project, ...others] = new Set(props.rows.map((row) => row.project));
  const panels = project !== undefined && !others.length ? (keptView(project)?.view.panels ?? []) : [];
  if (!panels.length) return null;
  return <Section title="Custom panels" note={`of ${project}`}><div class="charts">{panels.map((panel) => <ComparedPanel key={panel.id} panel={panel} {...props} />)}</div></Section>;
}

interface Line {
  series: Series;
  run: number;
}

function ComparedPanel({ panel, rows, titles, axis, smoothing, round }: Props & { panel: OwnPanel }) {
  const [place, near] = useNear<HTMLDivElement>();
  const [lines, setLines] = useState<Line[] | null>(null);
  const [problems, setProblems] = useState<string[]>([]);
  const x = panel.x || axis;
  const zoomed = zoom.value?.axis === x ? zoom.value : null;
  useEffect(() => {
    if (!near) return;
    let current = true;
    const query = { names: [], chosen: panel.items, table: "training", x, points: POINTS, rank: 0, start: zoomed?.start, end: zoomed?.end };
    const asked = rows.map(async (row, run) => {
      try {
        const answer = await source.value!.series(row.key, query);
        return { lines: answer.series.map((series): Line => ({ series, run })), problems: answer.problems ?? [] };
      } catch (error) {
        return { lines: [], problems: [(error as Error).message] };
      }
    });
    void Promise.all(asked).then((found) => {
      if (!current) return;
      setLines(found.flatMap((item) => item.lines));
      setProblems(found.flatMap((item, run) => item.problems.map((problem) => `${titles[run]}: ${problem}`)));
    });
    return () => {
      current = false;
    };
  }, [near, rows.map((row) => row.key).join("\n"), panel.items.join("\n"), x, zoomed?.start, zoomed?.end, round]);
  const names = new Set(lines?.map((line) => line.series.name));
  const title = titleOf(panel);
  return (
    <div ref={place} class="panel-place">
      {lines ? (
        <Chart
          title={title}
          help={panel.items.join("\n")}
          series={lines.map((line) => line.series)}
          titles={uniqueTitles(lines.map((line) => (names.size > 1 ? `${titles[line.run]}: ${line.series.name}` : titles[line.run])))}
          colors={names.size > 1 ? undefined : lines.map((line) => line.run)}
          axis={x}
          canLog
          smoothing={smoothing}
        />
      ) : (
        <div class="chart waiting" style={{ height: `${heightOf({}) + 34}px` }}><h3>{title}</h3></div>
      )}
      {problems.map((problem) => <p class="note" key={problem}>{problem}</p>)}
    </div>
  );
}

// How fast, large and exact the model is: the newest measurement, and its history over the checkpoints of a training.
import { useEffect, useState } from "preact/hooks";
import { panels, run, source } from "../data/page.ts";
import { dark } from "../data/store.ts";
import type { Benchmarks, MeasuredVariant, Peak, Series, ShownBenchmark } from "../data/types.ts";
import { lineStyle } from "../logic/colors.ts";
import { formatClock, formatShort, formatSpan, labelTicks } from "../logic/format.ts";
import { roofline, type Dot } from "../logic/roofline.ts";
import { tradeOff, type Spot } from "../logic/tradeoff.ts";
import { Chart } from "../ui/chart.tsx";
import { namesOf, PanelChart } from "../ui/panel.tsx";
import { Empty, Loading, Problem, Section } from "../ui/parts.tsx";
import { Table } from "../ui/table.tsx";

export function Benchmark() {
  const known = run.value!;
  const [found, setFound] = useState<Benchmarks | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    source.value!.benchmarks(known.key).then((answer) => current && setFound(answer), (problem) => current && setError(problem));
    return () => {
      current = false;
    };
  }, [known.key, known.benchmarks]);
  if (error && !found) return <Problem error={error} />;
  if (!found) return <Loading />;
  const newest = found.benchmarks.at(-1);
  if (!newest) {
    return (
      <Empty title="No benchmark yet">
        <p>Benchmark it from the training loop, or from a file:</p>
        <p><code>run.benchmark(model, example_input)</code></p>
        <p><code>trainvitals bench model.pt2 --variants fp32,onnx,int8-ort</code></p>
      </Empty>
    );
  }
  const history = (panels.value?.panels ?? []).filter((panel) => panel.id.startsWith("benchmark_") && namesOf(panel).length);
  return (
    <>
      <Results shown={newest} />
      <div class="charts">
        <Distribution shown={newest} />
        <Throughput rows={measured(newest)} />
        <TradeOff rows={measured(newest)} />
        <Roof rows={measured(newest)} peaks={newest.document.peaks ?? []} />
        {found.benchmarks.length > 1 && history.map((panel) => <PanelChart key={panel.id} panel={panel} axis="step" height={210} />)}
      </div>
    </>
  );
}

function measured(shown: ShownBenchmark): MeasuredVariant[] {
  return (shown.document.results ?? []).filter((row) => row.latency?.median !== undefined);
}

function Results({ shown }: { shown: ShownBenchmark }) {
  const { document: of, titles, rows } = shown;
  const facts = [of.model, of.inputs && `input ${of.inputs}`, of.step !== undefined && `step ${of.step.toLocaleString("en-US")}`, formatClock(of.started ?? null), of.seconds !== undefined && `took ${formatSpan(of.seconds)}`];
  const numbers = (title: string) => !["variant", "verdict"].includes(title) && !title.startsWith("latency");
  return (
    <Section title="Benchmark" note={facts.filter(Boolean).join(" · ")}>
      {shown.warnings.length > 0 && <ul class="findings">{shown.warnings.map((text) => <li key={text} class="warning">{text}</li>)}</ul>}
      <Table
        columns={titles.map((title) => ({ title, right: numbers(title), wide: title === "verdict" }))}
        rows={rows.map((row) => ({ key: row.name, cells: row.cells.map((cell, at) => (at === titles.length - 1 ? { show: row.text, class: tone(row.text) } : cell)) }))}
      />
      {shown.remarks.map((text) => <p key={text} class="dim">{text}</p>)}
    </Section>
  );
}

function tone(text: string): string {
  return text.includes("faster") || text.includes("slower") || text === "reference" ? "" : "dim";
}

function series(name: string, x: number[], y: number[]): Series {
  return { name, labels: {}, rank: null, total: x.length, x, y };
}

function Distribution({ shown }: { shown: ShownBenchmark }) {
  // Larger batches take longer: only those of the first row lie beside each other.
  const batch = shown.document.results?.[0]?.batch;
  const rows = shown.rows.filter((row, at) => row.distribution && shown.document.results?.[at].batch === batch);
  if (!rows.length) return null;
  return <Chart title={`Latency distribution, batch ${batch}`} axis="latency in ms" unit="%" height={210} low={0} help="Share of calls by duration, without the slowest" series={rows.map((row) => series(row.name, row.distribution!.ms, row.distribution!.percent))} titles={rows.map((row) => row.name)} />;
}

function Throughput({ rows }: { rows: MeasuredVariant[] }) {
  const variants = [...new Set(rows.map((row) => `${row.variant}/t${row.threads}`))];
  const of = (name: string) => rows.filter((row) => `${row.variant}/t${row.threads}` === name && row.items_per_second !== undefined);
  if (!variants.some((name) => of(name).length > 1)) return null;
  return <Chart title="Throughput" axis="batch" unit="items/s" height={210} low={0} help="Items per second by batch size" series={variants.map((name) => series(name, of(name).map((row) => row.batch), of(name).map((row) => row.items_per_second!)))} titles={variants} />;
}

const WIDTH = 560, HEIGHT = 230;

// Latency to the right, error upwards, size as area: the best is small and at the lower left.
function TradeOff({ rows }: { rows: MeasuredVariant[] }) {
  const floor = HEIGHT - 36;
  const { spots, across, upwards, missing } = tradeOff(rows, { left: 62, right: WIDTH - 20, top: 16, bottom: floor - 18 });
  if (spots.length < 2) return null;
  const [wide, high] = [labelTicks(across.map((tick) => tick.value), "", false), labelTicks(upwards.map((tick) => tick.value * 100), "", false)];
  return (
    <figure class="chart" aria-label="Size, error and speed">
      <figcaption><h3>Size, error and speed</h3><span class="axis">{["small and lower left is best", missing.length && `error not measured: ${missing.join(", ")}`].filter(Boolean).join("; ")}</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={spots.map(describeSpot).join("; ")} class="trade-off">
        <line x1="48" x2={WIDTH - 10} y1={floor} y2={floor} /><line x1="48" x2="48" y1="6" y2={floor} />
        {across.map((tick, at) => <text key={tick.value} x={tick.at} y={floor + 15} text-anchor="middle">{wide[at]}</text>)}
        {upwards.map((tick, at) => <text key={tick.value} x="42" y={tick.at + 4} text-anchor="end">{high[at]}</text>)}
        <text x={WIDTH - 10} y={HEIGHT - 4} text-anchor="end">latency in ms →</text>
        <text x="12" y="6" text-anchor="end" transform="rotate(-90 12 6)">error in % →</text>
        {spots.map((spot, at) => <Mark key={spot.name} spot={spot} at={at} />)}
      </svg>
      <Names names={spots.map((spot) => spot.name)} />
    </figure>
  );
}

function describeSpot(spot: Spot): string {
  return `${spot.name}: ${formatShort(spot.latency)} ms, error ${formatShort(spot.error * 100)} %, ${formatShort(spot.size)} MB`;
}

// Below the picture, for spots that lie on each other would have their names on each other.
function Names({ names }: { names: string[] }) {
  return <div class="legend">{names.map((name, at) => <span key={name}><i style={{ color: lineStyle(at, dark.value).stroke }} />{name}</span>)}</div>;
}

function Mark({ spot, at }: { spot: Spot; at: number }) {
  const { stroke } = lineStyle(at, dark.value);
  return (
    <g>
      <title>{describeSpot(spot)}</title>
      <circle cx={spot.x} cy={spot.y} r={spot.radius} fill={`${stroke}55`} stroke={stroke} />
    </g>
  );
}

// Under the sloped part memory is what limits, under the flat part arithmetic; the distance to the roof is what is left.
// Dots may lie above it: of weights that stay in a cache, and of arithmetic in fewer bits.
function Roof({ rows, peaks }: { rows: MeasuredVariant[]; peaks: Peak[] }) {
  const found = roofline(rows, peaks, { left: 48, right: WIDTH - 14, top: 14, bottom: HEIGHT - 34 });
  if (!found) return null;
  const { roof, lines, across, upwards } = found;
  const floor = HEIGHT - 34;
  return (
    <figure class="chart" aria-label="Roofline">
      <figcaption><h3>Roofline</h3><span class="axis">{`roof: ${formatShort(found.peak / 1e9)} GFLOP/s in 32-bit; above the slope: weights in cache`}</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" class="trade-off">
        <line x1="48" x2={WIDTH - 14} y1={floor} y2={floor} /><line x1="48" x2="48" y1="10" y2={floor} />
        {across.map((tick) => <text key={tick.value} x={tick.at} y={floor + 15} text-anchor="middle">{formatShort(tick.value)}</text>)}
        {upwards.map((tick) => <text key={tick.value} x="42" y={tick.at + 4} text-anchor="end">{formatShort(tick.value / 1e9)}</text>)}
        <text x={WIDTH - 14} y={HEIGHT - 4} text-anchor="end">FLOP per byte →</text>
        <text x="12" y="12" text-anchor="end" transform="rotate(-90 12 12)">GFLOP/s →</text>
        <polyline class="roof" points={roof.map(({ x, y }) => `${x},${y}`).join(" ")} />
        {lines.map((line, at) => <Dots key={line.name} name={line.name} dots={line.dots} stroke={lineStyle(at, dark.value).stroke} />)}
      </svg>
      <Names names={lines.map((line) => line.name)} />
    </figure>
  );
}

function Dots({ name, dots, stroke }: { name: string; dots: Dot[]; stroke: string }) {
  return (
    <g>
      {dots.length > 1 && <polyline class="batches" points={dots.map(({ x, y }) => `${x},${y}`).join(" ")} stroke={stroke} />}
      {dots.map((dot) => (
        <circle key={dot.batch} cx={dot.x} cy={dot.y} r="4" fill={stroke}>
          <title>{`${name}, batch ${dot.batch}: ${formatShort(dot.rate / 1e9)} GFLOP/s, ${formatShort(dot.share * 100)} % of the roofline at ${formatShort(dot.intensity)} FLOP per byte`}</title>
        </circle>
      ))}
    </g>
  );
}

// Every GPU of every node: now and over days, who holds it, what that costs, and which nodes fail.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { now, setQuery, source, usePageRoute } from "../data/page.ts";
import type { FaultyNode, Fleet as Answer, FleetFaults, FleetNode, FleetUse, Holder, IdleNode, UseRow } from "../data/types.ts";
import { heat } from "../logic/colors.ts";
import { describeGpu, describeNode, formatGpu, formatGpus, groupAlerts, groupRacks, isBright, type Measure, measureChoices, measureOf, movePeriod, searchHolders, sizeOf, STATE, STATES, stateTitle } from "../logic/fleet.ts";
import { formatAgo, formatClock, formatCount, formatEnergy, formatNumber, formatPercent, formatSpan, formatValue, NONE } from "../logic/format.ts";
import { first } from "../logic/route.ts";
import { LongTable } from "../ui/long_table.tsx";
import { Choice, Empty, Fact, Link, Loading, Problem, runRoute, Search, Section } from "../ui/parts.tsx";
import { Table, type TableRow } from "../ui/table.tsx";

const AGAIN_MS = 5000;
const SLOWLY_MS = 60_000;
const VIEWS = [["", "GPUs"], ["use", "Use and cost"], ["faults", "Faulty nodes"]] as const;
const WINDOWS = [["now", "now"], ["day", "today"], ["week", "last 7 days"], ["month", "last 30 days"]] as const;
const PERIODS = [["day", "1 day"], ["week", "7 days"], ["month", "30 days"]] as const;
const GROUPS = [["user", "user"], ["project", "project"], ["run", "run"], ["node", "node"]] as const;
const SPANS = [["7", "7 days"], ["14", "14 days"], ["28", "28 days"], ["56", "56 days"]] as const;
const FEW = 12;

export function Fleet() {
  const route = usePageRoute();
  const view = first(route, "view") ?? "";
  return (
    <main class="page" id="main" tabIndex={-1}>
      {view === "use" ? <Use /> : view === "faults" ? <Faults /> : <Gpus />}
    </main>
  );
}

// The same on all three: which of them it is, and that it is not real.
function Controls({ simulated, children }: { simulated?: boolean; children?: ComponentChildren }) {
  const view = first(usePageRoute(), "view") ?? "";
  return (
    <div class="controls">
      <div class="views" role="group" aria-label="view">{VIEWS.map(([id, title]) => <button type="button" key={id} class={view === id ? "on" : ""} aria-pressed={view === id} onClick={() => setQuery({ view: id || undefined, node: undefined })}>{title}</button>)}</div>
      {children}
      {simulated && <span class="badge warning simulated">SIMULATED: these GPUs do not exist</span>}
    </div>
  );
}

// An answer that is asked for again while somebody looks.
function useAnswer<T>(ask: () => Promise<T>, again: number, by: unknown[]): [T | null, Error | null] {
  const [found, setFound] = useState<T | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let current = true;
    let timer = 0;
    const look = async () => {
      if (!document.hidden) {
        try {
          const answer = await ask();
          if (current) setFound(answer), setError(null);
        } catch (problem) {
          if (current) setError(problem as Error);
        }
      }
      if (current) timer = window.setTimeout(() => void look(), again);
    };
    void look();
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, by);
  return [found, error];
}

// -- GPUs

function Gpus() {
  const route = usePageRoute();
  const span = first(route, "window") ?? "now";
  const metric = first(route, "metric") ?? "utilization_percent";
  const [found, error] = useAnswer(() => source.value!.fleet(span), AGAIN_MS, [span]);
  if (error && !found) return <><Controls /><Problem error={error} /></>;
  if (!found) return <><Controls /><Loading /></>;
  if (!found.nodes.length && !found.idle.length) return <><Controls /><NoNodes /></>;
  const measure = measureOf(found, metric);
  return (
    <>
      <Controls simulated={found.simulated}>
        <Choice label="color by" value={metric} options={measureChoices()} onChange={(value) => setQuery({ metric: value === "utilization_percent" ? undefined : value }, true)} />
        {metric !== STATE && <Choice label="over" value={span} options={WINDOWS} onChange={(value) => setQuery({ window: value === "now" ? undefined : value }, true)} />}
      </Controls>
      {error && <Problem error={error} />}
      <CapacityBar fleet={found} />
      <HeatMap fleet={found} measure={measure} />
      <AlertQueue fleet={found} />
      <Holders fleet={found} />
      {found.idle.length > 0 && <IdleNodes fleet={found} />}
    </>
  );
}

function NoNodes() {
  return (
    <Empty title="No nodes yet">
      <p>Nodes appear here when they have runs with an agent. To see runs of many machines, use a gateway or SSH:</p>
      <pre class="text" tabIndex={0}>{"trainvitals serve --store clickhouse://HOST:8123/trainvitals\ntrainvitals serve --host gpu1 --host gpu2"}</pre>
    </Empty>
  );
}

function CapacityBar({ fleet }: { fleet: Answer }) {
  const { capacity } = fleet;
  const share = (count: number) => (capacity.gpus ? count / capacity.gpus : 0);
  return (
    <Section
      title={formatCount(capacity.gpus, "GPU")}
      note={`on ${formatCount(capacity.nodes, "node")}${capacity.nodes_down ? `, ${capacity.nodes_down} not answering` : ""}${fleet.left_out ? `; ${fleet.left_out} more nodes not shown` : ""}`}
    >
      <div class="capacity" aria-hidden="true">{STATES.map(([id]) => capacity[id] > 0 && <i key={id} class={`gpu-${id}`} style={{ flexGrow: capacity[id] }} />)}</div>
      <ul class="capacity-legend">
        {STATES.map(([id, title, help]) => (capacity[id] > 0 || id === "free" || id === "down") && (
          <li key={id} title={help}><i class={`gpu-${id}`} aria-hidden="true" /><b>{capacity[id].toLocaleString("en-US")}</b> {title} {share(capacity[id]) >= 0.0005 && <span class="dim">{formatPercent(share(capacity[id]))}</span>}</li>
        ))}
      </ul>
    </Section>
  );
}

function HeatMap({ fleet, measure }: { fleet: Answer; measure: Measure | null }) {
  const [tip, setTip] = useState("");
  const chosen = first(usePageRoute(), "node");
  const racks = useMemo(() => groupRacks(fleet.nodes), [fleet]);
  const byName = useMemo(() => new Map(fleet.nodes.map((node) => [node.name, node])), [fleet]);
  const size = sizeOf(fleet.nodes.length);
  const at = measure ? fleet.metrics.indexOf(measure.id) : -1;
  const box = useRef<HTMLDivElement>(null);
  const point = (event: MouseEvent) => {
    const target = event.target as HTMLElement;
    const node = byName.get(target.closest<HTMLElement>("[data-node]")?.dataset.node ?? "");
    const gpu = node?.gpus[Number(target.dataset.gpu ?? -1)];
    setTip(node ? (gpu ? describeGpu(fleet, node, gpu) : describeNode(node, measure, at)) : "");
  };
  const title = measure ? `${measure.title}${fleet.window === "now" ? "" : `, ${measure.over}`}` : "state";
  const node = chosen ? byName.get(chosen) : undefined;
  return (
    <section class="section fleet-map" aria-label={`GPUs by ${title}`}>
      <header>
        <h2>{title[0].toUpperCase() + title.slice(1)}</h2>
        <span class="fleet-tip" role="status">{tip}</span>
        {measure && <span class="heat-scale"><span>{formatValue(measure.low, measure.unit)}</span><i aria-hidden="true" /><span>{formatValue(measure.high, measure.unit)}</span><span class="none">not measured</span><span class="lost">down</span></span>}
      </header>
      <div class={node ? "fleet-split" : ""}>
        <div class={`racks ${size}`} ref={box} onMouseOver={point} onMouseLeave={() => setTip("")} onKeyDown={(event) => box.current && moveFocus(box.current, event)}>
          {racks.map((rack, place) => (
            <section class="rack" key={rack.name}>
              {(racks.length > 1 || rack.name) && <h3>{rack.name || "no rack"} <span class="dim">{rack.nodes.length}</span></h3>}
              <div class="nodes">
                {rack.nodes.map((item, row) => <NodeTile key={item.name} node={item} measure={measure} at={at} size={size} isChosen={item.name === chosen} isFirst={place === 0 && row === 0} />)}
              </div>
            </section>
          ))}
        </div>
        {node && <NodePanel fleet={fleet} node={node} />}
      </div>
    </section>
  );
}

// One stop for the Tab key, and arrows between the nodes: a thousand stops would be a trap.
function moveFocus(box: HTMLElement, event: KeyboardEvent): void {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const nodes = [...box.querySelectorAll<HTMLElement>(".node")];
  const next = nodes[nodes.indexOf(document.activeElement as HTMLElement) + step];
  if (next) event.preventDefault(), next.focus();
}

interface TileProps {
  node: FleetNode;
  measure: Measure | null;
  at: number;
  size: string;
  isChosen: boolean;
  isFirst: boolean;
}

// Drawn again only when something about the node is different: of a thousand few are.
function NodeTile({ node, measure, at, size, isChosen, isFirst }: TileProps) {
  return useMemo(() => drawTile({ node, measure, at, size, isChosen, isFirst }), [JSON.stringify(node), measure?.id, measure?.high, size, isChosen, isFirst]);
}

function drawTile({ node, measure, at, size, isChosen, isFirst }: TileProps) {
  const open = () => setQuery({ node: isChosen ? undefined : node.name }, true);
  const trouble = { up: "", quiet: "", connecting: "slow", slow: "slow" }[node.state] ?? "silent";
  return (
    <button type="button" class={`node ${isChosen ? "chosen" : ""} ${trouble}`} data-node={node.name} tabIndex={isFirst || isChosen ? 0 : -1} aria-pressed={isChosen} aria-label={describeNode(node, measure, at)} onClick={open}>
      {size !== "small" && <span class="node-name">{node.name}{trouble && size === "large" && <span class="node-state"> {node.state}</span>}</span>}
      <span class="cells">
        {node.gpus.map((gpu, place) => {
          const value = at < 0 ? null : gpu.values[at];
          if (gpu.state === "down" || !measure || value === null || value === undefined) {
            const name = gpu.state === "down" ? "gpu-down" : measure ? "gpu-none" : `gpu-${gpu.state}`;
            return <i key={place} data-gpu={place} class={name}>{size === "large" && gpu.state === "down" ? "×" : ""}</i>;
          }
          const color = heat((value - measure.low) / (measure.high - measure.low));
          return <i key={place} data-gpu={place} class={size === "large" ? (isBright(color) ? "bright" : "deep") : ""} style={{ background: `rgb(${color.join(" ")})` }}>{size === "large" ? Math.round(value) : ""}</i>;
        })}
      </span>
    </button>
  );
}

function NodePanel({ fleet, node }: { fleet: Answer; node: FleetNode }) {
  const held = fleet.holders.filter((holder) => holder.node === node.name);
  return (
    <aside class="node-panel" aria-label={node.name}>
      <header><h3>{node.name}</h3><span class="dim">{[node.rack, node.model].filter(Boolean).join(" · ")}</span><button type="button" onClick={() => setQuery({ node: undefined }, true)}>close</button></header>
      {node.state === "up" && node.detail && <p class="note warning">{node.detail}</p>}
      {node.state !== "up" && <p class="note warning">{node.state === "quiet" ? "no run there now" : `${node.state}${node.detail ? `: ${node.detail}` : ""}`}{node.seen !== null && `, last heard ${formatSpan(Math.max(fleet.now - node.seen, 0))} ago`}</p>}
      <table class="node-gpus">
        <thead><tr><th>GPU</th><th>state</th><th class="right">use</th><th class="right">memory</th><th class="right">heat</th><th class="right">power</th></tr></thead>
        <tbody>
          {node.gpus.map((gpu, row) => (
            <tr key={row}>
              <td>{gpu.index}</td><td><i class={`dot gpu-${gpu.state}`} aria-hidden="true" />{gpu.problem || stateTitle(gpu.state)}</td>
              {["%", "%", "°C", "W"].map((unit, place) => <td key={place} class="right">{formatGpu({ ...gpu, problem: "" }, place, unit)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
      {held.map((holder) => (
        <p key={holder.key}><Link to={runRoute(holder.key)}>{holder.name}</Link> <span class="dim">{[holder.user, holder.project, holder.job, `GPU ${formatGpus(holder.gpus)}`].filter(Boolean).join(" · ")}</span></p>
      ))}
    </aside>
  );
}

function AlertQueue({ fleet }: { fleet: Answer }) {
  const [limit, setLimit] = useState(FEW);
  const groups = useMemo(() => groupAlerts(fleet.alerts), [fleet]);
  if (!groups.length) return <Section title="Active alerts"><p class="note">No active alerts.</p></Section>;
  return (
    <Section title="Active alerts" note={`${fleet.alerts_total.toLocaleString("en-US")} on ${formatCount(groups.length, "node")}`}>
      <div class="node-alerts">
        {groups.slice(0, limit).map(({ node, alerts }) => (
          <article key={node} class={`alert-card ${alerts[0].severity}`}>
            <header><button type="button" class="plain" onClick={() => setQuery({ node }, true)}><b>{node}</b></button><span class="dim">{formatCount(alerts.length, "alert")}</span></header>
            <ul>
              {alerts.map((alert) => (
                <li key={`${alert.rule} ${alert.key}`}>
                  <span class={`badge ${alert.severity}`}>{alert.severity}</span> {alert.message || alert.rule}
                  <span class="dim"> {[alert.count > 1 && `× ${alert.count}`, alert.acknowledged && "acknowledged", alert.silenced && "silenced", alert.since && formatAgo(alert.since, now.value)].filter(Boolean).join(", ")} in <Link to={runRoute(alert.key, "alerts")}>{alert.name}</Link></span>
                </li>
              ))}
            </ul>
          </article>
        ))}
      </div>
      {groups.length > limit && <button type="button" class="more" onClick={() => setLimit(limit + 50)}>show more nodes ({(groups.length - limit).toLocaleString("en-US")} hidden)</button>}
    </Section>
  );
}

function Holders({ fleet }: { fleet: Answer }) {
  const [text, setText] = useState("");
  const found = useMemo(() => searchHolders(fleet.holders, text), [fleet, text]);
  const rowOf = (holder: Holder): TableRow => ({
    key: keyOfHolder(holder),
    cells: [
      { show: <button type="button" class="plain" onClick={() => setQuery({ node: holder.node }, true)}>{holder.node}</button>, class: "first" },
      formatGpus(holder.gpus), holder.user || NONE, { show: <Link to={runRoute(holder.key)}>{holder.name}</Link> }, holder.project, holder.job || NONE,
      { show: formatPids(holder.pids), hint: holder.pids.join(", ") }, { show: <time title={holder.started ?? ""}>{formatClock(holder.started)}</time> },
    ],
  });
  return (
    <Section title="Who holds which GPU" note={text ? `${found.length} of ${fleet.holders.length}` : formatCount(fleet.holders.length, "entry").replace("entrys", "entries")} actions={fleet.holders.length > FEW && <Search label="search holders" placeholder="search   /" value={text} onInput={setText} />}>
      {fleet.holders.length === 0 && <p class="note">No run holds a GPU now.</p>}
      {found.length > 0 && <LongTable columns={[{ title: "node" }, { title: "GPUs" }, { title: "user" }, { title: "run" }, { title: "project" }, { title: "job" }, { title: "pids" }, { title: "since" }]} items={found} keyOf={keyOfHolder} rowOf={rowOf} />}
    </Section>
  );
}

function IdleNodes({ fleet }: { fleet: Answer }) {
  const rowOf = (node: IdleNode): TableRow => ({
    key: node.name,
    cells: [
      { show: node.name, class: "first" }, node.rack || NONE, node.gpus ? `${node.gpus} ${node.model}`.trim() : NONE,
      { show: node.seen === null ? NONE : <time title={formatClock(new Date(node.seen * 1000).toISOString())}>{formatSpan(fleet.now - node.seen)} ago</time> },
    ],
  });
  return (
    <Section title="Idle nodes" note={`${formatCount(fleet.idle.length, "node")} without a run for more than 7 days; not counted above`}>
      <LongTable columns={[{ title: "node" }, { title: "rack" }, { title: "GPUs" }, { title: "last run" }]} items={fleet.idle} keyOf={(node) => node.name} rowOf={rowOf} />
    </Section>
  );
}

function keyOfHolder(holder: Holder): string {
  return `${holder.node} ${holder.key}`;
}

function formatPids(pids: number[]): string {
  return pids.length > 2 ? `${pids[0]} and ${pids.length - 1} more` : pids.join(", ") || NONE;
}

// -- use and cost

function Use() {
  const route = usePageRoute();
  const period = first(route, "period") ?? "week";
  const by = first(route, "by") ?? "user";
  const until = first(route, "until");
  const [found, error] = useAnswer(() => source.value!.fleetUse({ period, by, until }), SLOWLY_MS, [period, by, until]);
  const today = new Date().toISOString().slice(0, 10);
  const choices = (
    <>
      <Choice label="period" value={period} options={PERIODS} onChange={(value) => setQuery({ period: value === "week" ? undefined : value }, true)} />
      <Choice label="by" value={by} options={GROUPS} onChange={(value) => setQuery({ by: value === "user" ? undefined : value }, true)} />
      {found && <span class="period">
        <button type="button" title="earlier" aria-label="earlier" onClick={() => setQuery({ until: movePeriod(found.first, found.last, true, today) }, true)}>‹</button>
        <span>{found.first === found.last ? found.last : `${found.first} to ${found.last}`} <span class="dim">UTC</span></span>
        <button type="button" title="later" aria-label="later" disabled={!until} onClick={() => setQuery({ until: movePeriod(found.first, found.last, false, today) }, true)}>›</button>
      </span>}
    </>
  );
  if (error && !found) return <><Controls>{choices}</Controls><Problem error={error} /></>;
  if (!found) return <><Controls>{choices}</Controls><Loading /></>;
  return (
    <>
      <Controls simulated={found.simulated}>{choices}</Controls>
      {error && <Problem error={error} />}
      {found.rows.length === 0 ? <Empty title="No data in this period"><p>Agents count GPU hours per day for the GPUs held by runs.</p></Empty> : <UseTable found={found} />}
      {found.unmeasured > 0 && <p class="note">{formatCount(found.unmeasured, "run")} of this period {found.unmeasured === 1 ? "has" : "have"} no figures by day: an agent of an earlier version watched {found.unmeasured === 1 ? "it" : "them"}.</p>}
    </>
  );
}

function UseTable({ found }: { found: FleetUse }) {
  const { total } = found;
  const most = found.rows[0]?.gpu_seconds ?? 0;
  const hasCost = found.rows.some((row) => row.cost !== null);
  const idleShare = (row: UseRow) => (row.idle_seconds === null || !row.gpu_seconds ? null : row.idle_seconds / row.gpu_seconds);
  const rowOf = (row: UseRow): TableRow => ({
    key: `${row.title} ${row.key}`,
    cells: [
      { show: row.key ? <Link to={runRoute(row.key)}>{row.title}</Link> : row.title || <span class="dim">not recorded</span>, class: "first" },
      { show: <><span class="cell-bar" aria-hidden="true"><i style={{ width: `${most ? (100 * row.gpu_seconds) / most : 0}%` }} /></span><span class="bar-number">{formatHours(row.gpu_seconds)}</span></> },
      formatValue(row.use_percent, "%"),
      { show: <>{row.idle_seconds === null ? NONE : formatHours(row.idle_seconds)} <span class="dim">{formatPercent(idleShare(row))}</span></>, class: (idleShare(row) ?? 0) > 0.3 ? "warning" : "" },
      formatEnergy(row.joules),
      formatEnergy(row.idle_joules),
      ...(hasCost ? [formatMoney(row.cost, row.currency), formatMoney(row.idle_cost, row.currency)] : []),
      String(row.gpus), ...(found.by === "run" ? [] : [String(row.runs)]),
    ],
  });
  const columns = [
    { title: found.by }, { title: "GPU hours", right: true }, { title: "mean use", right: true }, { title: "idle hours", right: true }, { title: "energy", right: true }, { title: "energy while idle", right: true },
    ...(hasCost ? [{ title: "cost", right: true }, { title: "cost of idling", right: true }] : []),
    { title: "GPUs", right: true }, ...(found.by === "run" ? [] : [{ title: "runs", right: true }]),
  ];
  return (
    <>
      <div class="facts">
        <Fact title="GPU hours held" value={formatHours(total.gpu_seconds)} note={`${formatCount(total.gpus, "GPU")}, ${formatCount(total.runs, "run")}`} />
        <Fact title="mean use" value={formatValue(total.use_percent, "%")} />
        <Fact title="idle hours" value={total.idle_seconds === null ? NONE : formatHours(total.idle_seconds)} note={formatPercent(idleShare(total))} tone={(idleShare(total) ?? 0) > 0.3 ? "warning" : undefined} />
        <Fact title="energy" value={formatEnergy(total.joules)} note={total.idle_joules === null ? undefined : `${formatEnergy(total.idle_joules)} while idle`} />
        {total.co2_kg !== null && <Fact title="CO₂" value={`${formatNumber(total.co2_kg, 3)} kg`} />}
        <Fact title="cost" value={formatMoney(total.cost, total.currency)} note={total.cost === null ? "no price is set" : `${formatMoney(total.idle_cost, total.currency)} of it idle`} />
      </div>
      <LongTable columns={columns} items={found.rows} keyOf={(row) => `${row.title} ${row.key}`} rowOf={rowOf} />
      {found.left_out > 0 && <p class="note">{found.left_out.toLocaleString("en-US")} more with less are not shown.</p>}
    </>
  );
}

function formatHours(seconds: number): string {
  const hours = seconds / 3600;
  return hours < 10 ? hours.toFixed(1) : Math.round(hours).toLocaleString("en-US");
}

function formatMoney(amount: number | null, currency: string): string {
  if (amount === null) return NONE;
  const digits = Math.abs(amount) < 100 ? 2 : 0;
  return `${amount.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${currency}`.trim();
}

// -- faulty nodes

function Faults() {
  const days = first(usePageRoute(), "days") ?? "28";
  const [found, error] = useAnswer(() => source.value!.fleetFaults(Number(days)), SLOWLY_MS, [days]);
  const choice = <Choice label="over" value={days} options={SPANS} onChange={(value) => setQuery({ days: value === "28" ? undefined : value }, true)} />;
  if (error && !found) return <><Controls>{choice}</Controls><Problem error={error} /></>;
  if (!found) return <><Controls>{choice}</Controls><Loading /></>;
  return (
    <>
      <Controls simulated={found.simulated}>{choice}</Controls>
      {error && <Problem error={error} />}
      <FaultList found={found} />
    </>
  );
}

function FaultList({ found }: { found: FleetFaults }) {
  const [limit, setLimit] = useState(50);
  if (!found.nodes.length) return <Empty title={`No faults in ${found.days} days`}><p>No Xid or ECC errors, throttling by heat, lost GPUs, stragglers or unexplained deaths of runs on {formatCount(found.without, "node")}.</p></Empty>;
  const most = found.nodes[0].points;
  return (
    <Section title={formatCount(found.nodes.length + found.left_out, "node")} note={`with faults, ${found.without.toLocaleString("en-US")} without. 5 points for each day with a critical alert, 2 with a warning, 5 for each dead run.`}>
      <ol class="faulty">
        {found.nodes.slice(0, limit).map((node, place) => <Faulty key={node.name} node={node} place={place + 1} most={most} />)}
      </ol>
      {found.nodes.length > limit && <button type="button" class="more" onClick={() => setLimit(limit + 50)}>show more</button>}
    </Section>
  );
}

function Faulty({ node, place, most }: { node: FaultyNode; place: number; most: number }) {
  return (
    <li>
      <header>
        <span class="dim">{place}</span><h3><Link to={{ page: "fleet", run: null, query: new Map([["node", [node.name]]]) }}>{node.name}</Link></h3><span class="dim">{node.rack}</span>
        <span class="points"><span class="cell-bar" aria-hidden="true"><i style={{ width: `${(100 * node.points) / most}%` }} /></span><b>{node.points}</b> points</span>
        <time class="dim" title={new Date(node.last * 1000).toISOString()}>last {formatAgo(new Date(node.last * 1000).toISOString(), now.value)}</time>
      </header>
      <Table
        columns={[{ title: "fault" }, { title: "days", right: true }, { title: "times", right: true }, { title: "GPUs" }, { title: "evidence", wide: true }]}
        rows={[
          ...node.faults.map((fault) => ({
            key: fault.rule,
            cells: [{ show: <><span class={`badge ${fault.severity}`}>{fault.severity}</span> {fault.title}</>, class: "first" }, String(fault.days), fault.times.toLocaleString("en-US"), formatGpus(fault.gpus) || NONE, { show: <>{fault.message} <span class="dim">{formatClock(new Date(fault.last * 1000).toISOString())} in <Link to={runRoute(fault.key, "alerts")}>{fault.name}</Link></span></> }],
          })),
          ...node.died.map((death, at) => ({
            key: `death ${at}`,
            cells: [{ show: <><span class="badge critical">death</span> run died</>, class: "first" }, NONE, NONE, NONE, { show: <>{death.cause} <span class="dim">{formatClock(new Date(death.time * 1000).toISOString())}, <Link to={runRoute(death.key)}>{death.name}</Link></span></> }],
          })),
        ]}
      />
    </li>
  );
}

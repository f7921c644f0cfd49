import { useEffect, useErrorBoundary } from "preact/hooks";
import { about, connected, go, heard, now, refreshRuns, route, run, runError, runs, source, stale, theme, type Theme, whole } from "./data/store.ts";
import { SourceError } from "./data/source.ts";
import { keptView } from "./data/view.ts";
import { formatClock, formatSpan } from "./logic/format.ts";
import { chartQuery, RUN_PAGES, type Route } from "./logic/route.ts";
import { Alerts } from "./pages/alerts.tsx";
import { Benchmark } from "./pages/benchmark.tsx";
import { Compare } from "./pages/compare.tsx";
import { Export } from "./pages/export.tsx";
import { Findings } from "./pages/findings.tsx";
import { Fleet } from "./pages/fleet.tsx";
import { Logs } from "./pages/logs.tsx";
import { Machines } from "./pages/machines.tsx";
import { Media } from "./pages/media.tsx";
import { Overview } from "./pages/overview.tsx";
import { hasRl, Rl } from "./pages/rl.tsx";
import { Runs } from "./pages/runs.tsx";
import { System } from "./pages/system.tsx";
import { Training } from "./pages/training.tsx";
import { Icon } from "./ui/icons.tsx";
import { hasMachines } from "./ui/machines.tsx";
import { Empty, Link, Loading, Problem, runRoute, Status } from "./ui/parts.tsx";

const PAGES: Record<(typeof RUN_PAGES)[number], { title: string; view: () => preact.JSX.Element | null }> = {
  overview: { title: "Overview", view: Overview },
  findings: { title: "Findings", view: Findings },
  training: { title: "Training", view: Training },
  rl: { title: "RL", view: Rl },
  system: { title: "System", view: System },
  media: { title: "Media", view: Media },
  benchmark: { title: "Benchmark", view: Benchmark },
  alerts: { title: "Alerts", view: Alerts },
  logs: { title: "Logs", view: Logs },
  export: { title: "Export", view: Export },
};
const PLAIN: Record<string, string> = { runs: "Runs", compare: "Compare", machines: "Machines", fleet: "Fleet" };
const THEMES: [Theme, string, string][] = [["system", "system_theme", "system"], ["dark", "moon", "dark"], ["light", "sun", "light"]];

export function App() {
  const at = route.value;
  const title = run.value && at.run ? `${run.value.name} · ${PAGES[at.page as keyof typeof PAGES]?.title ?? ""}` : PLAIN[at.page] ?? "Runs";
  useEffect(() => {
    document.title = `${title} · trainvitals`;
  }, [title]);
  useEffect(() => {
    document.addEventListener("keydown", shortcuts);
    return () => document.removeEventListener("keydown", shortcuts);
  }, []);
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>skip to content</a>
      <Side />
      <div class="body">
        <Head />
        {at.run !== null ? <RunPage key={at.run} /> : at.page === "compare" ? <Compare /> : at.page === "machines" ? <Guard><Machines /></Guard> : at.page === "fleet" ? <Guard><Fleet /></Guard> : at.page === "runs" ? <Runs /> : (
          <main class="page" id="main"><Empty title="Page not found"><p><Link to={{ page: "runs", run: null, query: new Map() }}>All runs</Link></p></Empty></main>
        )}
      </div>
      <Keys />
    </div>
  );
}

const KEYS: [string, string][] = [
  ["g then r c n d", "runs, compare, machines (nodes), fleet (data center)"],
  ["g then o f t p s m b a l e", "overview, findings, training, RL (policy), system, media, benchmark, alerts, logs, export of this run"],
  ["/", "search on this page"],
  ["Tab", "next chart or button"],
  ["← →", "in a chart: step through values; with Shift: pan"],
  ["+ − 0", "in a chart: zoom in, zoom out, reset zoom"],
  ["← →", "at a step slider: the step before or after; Home and End: the first, the last"],
  ["f", "in a chart: full screen"],
  ["?", "show this help"],
];

function Keys() {
  return (
    <dialog id="keys" class="keys" aria-label="keyboard shortcuts">
      <form method="dialog">
        <header><h2>Keyboard shortcuts</h2><button>close</button></header>
        <dl>{KEYS.map(([key, what]) => <><dt><kbd>{key}</kbd></dt><dd>{what}</dd></>)}</dl>
      </form>
    </dialog>
  );
}

// g then the first letter of a page, as in mail programs.
let lead = 0;
function shortcuts(event: KeyboardEvent): void {
  const typing = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") {
    (document.getElementById("keys") as HTMLDialogElement | null)?.showModal();
    return;
  }
  if (event.key === "g") {
    lead = Date.now();
    return;
  }
  if (Date.now() - lead > 1500) return;
  lead = 0;
  const page = RUN_PAGES.find((name) => (name === "rl" ? "p" : name[0]) === event.key); // p as in policy: r is for runs
  if (page && route.value.run) go({ page, run: route.value.run, query: chartQuery(route.value) });
  else if (event.key === "r") go({ page: "runs", run: null, query: new Map() });
  else if (event.key === "n" && hasMachines()) go({ page: "machines", run: null, query: new Map() });
  else if (event.key === "d" && source.value?.isLive) go({ page: "fleet", run: null, query: new Map() });
  else if (event.key === "c") go({ page: "compare", run: null, query: new Map() });
}

// Some pages are of runs that have something to show there.
function isShown(page: string, at: Route): boolean {
  if (page === "rl") return hasRl();
  return page !== "benchmark" || at.page === page || Boolean(run.value?.benchmarks);
}

function Side() {
  const at = route.value;
  const key = at.run;
  useEffect(() => {
    // On a narrow screen the pages are a row that scrolls.
    document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [at.page, key]);
  return (
    <nav class="side" aria-label="pages">
      <Link class="brand" to={{ page: "runs", run: null, query: new Map() }} title="trainvitals">
        <svg viewBox="0 0 32 32" aria-hidden="true"><path d="M3 18h7l3-9 5 15 4-11 2 5h5" fill="none" stroke="currentColor" stroke-width="2.6" stroke-linejoin="round" stroke-linecap="round" /></svg>
        <span>trainvitals</span>
      </Link>
      {key !== null && RUN_PAGES.filter((page) => isShown(page, at)).map((page) => (
        <Link key={page} to={{ page, run: key, query: chartQuery(at) }} current={at.page === page}>
          <Icon name={page} /><span>{PAGES[page].title}</span>
          {page === "alerts" && (run.value?.firing.length ?? 0) > 0 && <b class="count">{run.value!.firing.length}</b>}
        </Link>
      ))}
      <div class="side-rest">
        <Link to={{ page: "runs", run: null, query: new Map() }} current={at.page === "runs"}><Icon name="runs" /><span>Runs</span></Link>
        {hasMachines() && <Link to={{ page: "machines", run: null, query: new Map() }} current={at.page === "machines"}><Icon name="machines" /><span>Machines</span></Link>}
        {source.value?.isLive && <Link to={{ page: "fleet", run: null, query: new Map() }} current={at.page === "fleet"}><Icon name="fleet" /><span>Fleet</span></Link>}
        <Link to={{ page: "compare", run: null, query: key !== null ? new Map([["run", [key]]]) : new Map() }} current={at.page === "compare"}><Icon name="compare" /><span>Compare</span></Link>
      </div>
      <div class="side-foot">
        <button type="button" class="theme" title={`theme: ${THEMES.find(([name]) => name === theme.value)![2]}`} aria-label={`theme: ${THEMES.find(([name]) => name === theme.value)![2]}`} onClick={() => {
          const place = THEMES.findIndex(([name]) => name === theme.value);
          theme.value = THEMES[(place + 1) % THEMES.length][0];
        }}><Icon name={THEMES.find(([name]) => name === theme.value)![1]} /></button>
        <button type="button" class="theme" title="keyboard shortcuts (?)" aria-label="keyboard shortcuts" onClick={() => (document.getElementById("keys") as HTMLDialogElement).showModal()}>?</button>
        <span class="dim version">{about.value?.version}</span>
      </div>
    </nav>
  );
}

function Head() {
  const at = route.value;
  const known = run.value;
  if (at.run === null) {
    return <header class="head"><h1>{PLAIN[at.page] ?? "Runs"}</h1>{!source.value?.isLive && <span class="badge">report</span>}<Connection /></header>;
  }
  return (
    <header class="head">
      <h1 title={known?.id}>{known?.name ?? at.run}</h1>
      {known && <Status status={known.status} live={known.live && source.value!.isLive} severity={known.health.severity} />}
      {known?.simulated && <span class="badge warning">simulated GPUs</span>}
      {known && known.attempt > 1 && <span class="badge">attempt {known.attempt}</span>}
      {known && <span class="dim">{known.project}</span>}
      {!source.value?.isLive && <span class="badge">report{known?.live && ` as of ${formatClock(new Date(now.value).toISOString())}`}</span>}
      <Connection />
      <span class="head-rest">
        {whole.value && <button type="button" onClick={() => window.print()}>print or save as PDF</button>}
        {!source.value?.isLive && <Link to={runRoute(at.run, at.page, whole.value ? [] : [["print", "1"]])}>{whole.value ? "back" : "print view"}</Link>}
        <RunPicker />
      </span>
    </header>
  );
}

// Whether what is shown may be old.
function Connection() {
  if (!stale.value) return null;
  return <span class="badge critical" role="status">{connected.value ? "No data" : "Disconnected"} for {formatSpan((now.value - heard.value) / 1000)}{!connected.value && ", reconnecting…"}</span>;
}

function RunPicker() {
  const rows = runs.value?.runs ?? [];
  if (rows.length < 2) return null;
  return (
    <select
      aria-label="switch run"
      value={route.value.run ?? ""}
      onFocus={() => void refreshRuns()}
      onChange={(event) => go({ page: route.value.page, run: event.currentTarget.value, query: new Map() })}
    >
      {rows.slice(0, 300).map((row) => <option key={row.key} value={row.key}>{row.name} · {row.status}, {formatClock(row.started)}</option>)}
    </select>
  );
}

function RunPage() {
  const page = route.value.page as keyof typeof PAGES;
  const View = PAGES[page]?.view ?? Overview;
  if (runError.value && !run.value) {
    return (
      <main class="page" id="main">
        <Problem error={runError.value} />
        <p><Link to={{ page: "runs", run: null, query: new Map() }}>All runs</Link></p>
      </main>
    );
  }
  // How its charts are shown comes first: they would move under the mouse.
  if (!run.value || !keptView(run.value.project)) return <main class="page" id="main"><Loading /></main>;
  if (whole.value) return <Whole />;
  return (
    <main class="page" id="main" tabIndex={-1}>
      {runError.value && <LostRun error={runError.value} />}
      <Guard key={page}><View /></Guard>
    </main>
  );
}

// Why a run that is shown cannot be read again.
function LostRun({ error }: { error: Error }) {
  if (!(error instanceof SourceError) || error.status !== 404) return <Problem error={error} />;
  return (
    <div class="problem" role="alert">
      <b>This run was deleted or moved.</b>
      <span>What is shown was read before. <Link to={{ page: "runs", run: null, query: new Map() }}>See all runs</Link></span>
    </div>
  );
}

// Every page with something on it, one after the other: what is printed is all there is. Paper exports nothing.
function Whole() {
  return (
    <main class="page whole" id="main">
      {RUN_PAGES.filter((page) => page !== "export" && isShown(page, route.value)).map((page) => {
        const { title, view: View } = PAGES[page];
        return <article key={page} class={`part part-${page}`}><h1>{title}</h1><Guard><View /></Guard></article>;
      })}
    </main>
  );
}

// A bug in one page must not take the others down.
function Guard({ children }: { children: preact.ComponentChildren }) {
  const [error, reset] = useErrorBoundary();
  if (error) {
    return (
      <div class="problem" role="alert">
        <b>Something went wrong on this page: {String((error as Error).message ?? error)}</b>
        <button type="button" onClick={reset}>try again</button>
      </div>
    );
  }
  return <>{children}</>;
}

// The address of what is shown, after the #: deep links work from a server and from a file.
//   #/runs   #/machines   #/fleet?view=use   #/compare?run=a&run=b   #/run/KEY/training?x=time&from=1&to=2

export interface Route {
  page: string;
  run: string | null;
  query: Map<string, string[]>;
}

export const RUN_PAGES = ["overview", "findings", "training", "rl", "system", "media", "benchmark", "alerts", "logs", "export"] as const;

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  const query = new Map<string, string[]>();
  for (const [name, value] of new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1))) {
    query.set(name, [...(query.get(name) ?? []), value]);
  }
  const parts = path.split("/").filter(Boolean).map(decode);
  if (parts[0] === "run" && parts[1]) {
    const page = (RUN_PAGES as readonly string[]).includes(parts[2]) ? parts[2] : "overview";
    return { page, run: parts[1], query };
  }
  if (parts[0] === "compare" || parts[0] === "machines" || parts[0] === "fleet") return { page: parts[0], run: null, query };
  return { page: parts[0] === "runs" || !parts[0] ? "runs" : "unknown", run: null, query };
}

// An MLflow client prints addresses of MLflow's own page, which the server knows as paths: #/experiments/1/runs/5f2c...
export function trackerPath(hash: string): string | null {
  return /^#\/(experiments\/\d+(?:\/runs\/[0-9a-f]{32})?)\/?$/.exec(hash)?.[1] ?? null;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function formatRoute(route: Route): string {
  const query = new URLSearchParams();
  for (const [name, values] of route.query) for (const value of values) query.append(name, value);
  const path = route.run !== null ? `run/${encodeURIComponent(route.run)}/${route.page}` : route.page;
  const text = query.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export function first(route: Route, name: string): string | undefined {
  return route.query.get(name)?.[0];
}

export function number(route: Route, name: string): number | undefined {
  const text = first(route, name);
  if (text === undefined || text === "") return undefined;
  const value = Number(text);
  return Number.isFinite(value) ? value : undefined;
}

// The same route with some parts of the query changed; undefined takes one out.
export function withQuery(route: Route, changes: Record<string, string | number | string[] | undefined>): Route {
  const query = new Map(route.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || (Array.isArray(value) && !value.length)) query.delete(name);
    else query.set(name, Array.isArray(value) ? value : [String(value)]);
  }
  return { ...route, query };
}

// -- how charts are shown, by their titles: `log` and `linear` where it is not as declared, `hide` for single lines,
// `pin` for metrics that come first. What the address says comes before what is kept of the project.

const KEPT = ["zx", "from", "to", "smooth", "log", "linear", "hide", "pin"];

// What goes along from one page of a run to the next.
export function chartQuery(route: Route): Map<string, string[]> {
  return new Map([...route.query].filter(([name]) => KEPT.includes(name)));
}

export interface Scales {
  log: string[];
  linear: string[];
}

function scalesIn(route: Route): Scales {
  return { log: route.query.get("log") ?? [], linear: route.query.get("linear") ?? [] };
}

export function isLog(route: Route, chart: string, declared: boolean, kept?: Scales): boolean {
  for (const { log, linear } of [scalesIn(route), ...(kept ? [kept] : [])]) {
    if (log.includes(chart)) return true;
    if (linear.includes(chart)) return false;
  }
  return declared;
}

// The scale of a chart that is as declared goes without saying.
export function moveScale({ log, linear }: Scales, chart: string, declared: boolean, to: boolean): Scales {
  const others = (charts: string[]) => charts.filter((item) => item !== chart);
  return {
    log: to && !declared ? [...others(log), chart] : others(log),
    linear: !to && declared ? [...others(linear), chart] : others(linear),
  };
}

export function setLog(route: Route, chart: string, declared: boolean, to: boolean): Route {
  return withQuery(route, { ...moveScale(scalesIn(route), chart, declared, to) });
}

export function hiddenLines(route: Route, chart: string, lines: string[], kept: string[] = []): Set<string> {
  const read = (hidden: string[]) => lines.filter((line) => hidden.includes(`${chart}: ${line}`));
  const said = read(route.query.get("hide") ?? []);
  return new Set(said.length ? said : read(kept));
}

export function replaceHidden(all: string[], chart: string, lines: string[], hidden: ReadonlySet<string>): string[] {
  const own = new Set(lines.map((line) => `${chart}: ${line}`));
  return [...all.filter((item) => !own.has(item)), ...[...hidden].map((line) => `${chart}: ${line}`)];
}

export function hideLines(route: Route, chart: string, lines: string[], hidden: ReadonlySet<string>): Route {
  return withQuery(route, { hide: replaceHidden(route.query.get("hide") ?? [], chart, lines, hidden) });
}

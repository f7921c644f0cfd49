import { render } from "preact";
import { ApiSource } from "./data/api.ts";
import { InlineSource, readInline } from "./data/inline.ts";
import type { Source } from "./data/source.ts";
import { go, route, start } from "./data/store.ts";
import { App } from "./app.tsx";
import { Problem } from "./ui/parts.tsx";
import "./style.css";

const root = document.getElementById("app")!;

async function boot(): Promise<void> {
  const element = document.getElementById("data");
  const data = element ? await readInline(element) : null;
  const source: Source = data ? new InlineSource(data) : new ApiSource();
  // The run is asked for at once, not after the rest: it decides when the first chart is there.
  const key = route.value.run;
  const run = key !== null ? source.run(key).catch(() => null) : null;
  const [about, panels] = await Promise.all([source.about(), source.panels()]);
  start(source, { about, panels }, run);
  if (data && !location.hash) {
    const keys = Object.keys(data.runs);
    go(data.comparison ? { page: "compare", run: null, query: new Map([["run", keys]]) } : { page: "overview", run: keys[0], query: route.value.query }, true);
  }
  render(<App />, root);
}

boot().catch((error: Error) => {
  render(<main class="page"><Problem error={error} /></main>, root);
  // A server that is just starting, or comes back: look again.
  setTimeout(() => location.reload(), 5000);
});

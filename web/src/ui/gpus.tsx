// Every GPU at a glance: a card each, or small cells where there are many.
import { useFeed } from "../data/feed.ts";
import { panels, run } from "../data/store.ts";
import type { Labels, Series } from "../data/types.ts";
import { formatValue } from "../logic/format.ts";
import { byDevice, gpuNumber, gpuTitle } from "../logic/metrics.ts";

const NAMES = ["utilization_percent", "memory_percent", "memory_used_mb", "memory_total_mb", "temperature_celsius", "power_draw_watts", "power_limit_watts"];
const MANY = 16;

export interface Gpu {
  id: string;
  title: string;
  labels: Labels;
  values: Map<string, number | null>;
  history: Series | null;
}

export function collectGpus(series: Series[]): Gpu[] {
  const hosts = new Set(series.map((item) => item.labels.host)).size > 1;
  const found = new Map<string, Gpu>();
  for (const item of series) {
    const id = `${item.labels.host ?? ""} ${item.labels.gpu_uuid ?? item.labels.gpu_index ?? ""}`;
    let gpu = found.get(id);
    if (!gpu) {
      const title = `${hosts ? `${item.labels.host} ` : ""}${gpuTitle(item.labels)}`;
      gpu = { id, title, labels: item.labels, values: new Map(), history: null };
      found.set(id, gpu);
    }
    gpu.values.set(item.name, item.y.length ? item.y[item.y.length - 1] : null);
    if (item.name === "utilization_percent") gpu.history = item;
  }
  return [...found.values()].sort(byDevice);
}

export function tone(table: string, metric: string, value: number | null | undefined): string {
  if (value === null || value === undefined) return "";
  let found = "";
  for (const threshold of panels.value?.thresholds ?? []) {
    if (threshold.table !== table || threshold.metric !== metric) continue;
    if (threshold.below ? value <= threshold.value : value >= threshold.value) found = threshold.severity;
  }
  return found;
}

export function GpuGrid() {
  const known = run.value;
  const feed = useFeed(known?.key ?? null, known?.tables.gpu ? { names: NAMES, table: "gpu", x: "time", points: 60 } : null);
  const gpus = collectGpus(feed.value.series ?? []);
  return <GpuCards gpus={gpus} />;
}

export function GpuCards({ gpus }: { gpus: Gpu[] }) {
  if (!gpus.length) return null;
  if (gpus.length <= MANY) return <div class={`gpu-grid ${gpus.length % 4 ? "" : "fours"}`} data-gpus={gpus.length}>{gpus.map((gpu) => <Card key={gpu.id} gpu={gpu} />)}</div>;
  const hosts = [...new Set(gpus.map((gpu) => gpu.labels.host))];
  return (
    <div class="gpu-hosts" data-gpus={gpus.length}>
      {hosts.map((host) => (
        <div class="gpu-host" key={String(host)}>
          {hosts.length > 1 && <b title={String(host)}>{String(host)}</b>}
          <div class="gpu-grid many">{gpus.filter((gpu) => gpu.labels.host === host).map((gpu) => <Cell key={gpu.id} gpu={gpu} />)}</div>
        </div>
      ))}
    </div>
  );
}

function Card({ gpu }: { gpu: Gpu }) {
  const get = (name: string) => gpu.values.get(name);
  const power = get("power_draw_watts");
  const limit = get("power_limit_watts");
  return (
    <div class="gpu">
      <div class="gpu-head">
        <b>{gpu.title}</b>
        <span class="dim" title={String(gpu.labels.gpu_name ?? "")}>{String(gpu.labels.gpu_name ?? "")}</span>
      </div>
      <Bar title="util" value={get("utilization_percent")} text={formatValue(get("utilization_percent"), "%")} tone="" />
      <Bar
        title="memory"
        value={get("memory_percent")}
        text={ofWhole(get("memory_used_mb"), get("memory_total_mb"), "MB")}
        tone={tone("gpu", "memory_percent", get("memory_percent"))}
      />
      <Bar title="power" value={power && limit ? (power / limit) * 100 : null} text={ofWhole(power, limit, "W")} tone="" />
      <div class="gpu-foot">
        <span class={tone("gpu", "temperature_celsius", get("temperature_celsius"))}>{formatValue(get("temperature_celsius"), "°C")}</span>
        {gpu.history && <Spark series={gpu.history} />}
      </div>
    </div>
  );
}

// 47.8 / 79.6 GB: the unit once where both share it.
function ofWhole(part: number | null | undefined, whole: number | null | undefined, unit: string): string {
  const [left, right] = [formatValue(part, unit), formatValue(whole, unit)];
  if (!whole) return left;
  const [number, own] = left.split(" ");
  return own === right.split(" ")[1] ? `${number} / ${right}` : `${left} / ${right}`;
}

function Bar({ title, value, text, tone: name }: { title: string; value: number | null | undefined; text: string; tone: string }) {
  const share = Math.min(Math.max(value ?? 0, 0), 100);
  return (
    <div class={`bar ${name}`} role="meter" aria-label={title} aria-valuenow={Math.round(share)} aria-valuemin={0} aria-valuemax={100} aria-valuetext={text}>
      <span class="bar-title">{title}</span>
      <span class="bar-track"><i style={{ width: `${share}%` }} /></span>
      <span class="bar-text">{text}</span>
    </div>
  );
}

// A cell has room for three digits; its title has the rest.
function formatDegrees(value: number | null | undefined): string {
  return value === null || value === undefined ? "" : `${Math.round(value)}°`;
}

function Cell({ gpu }: { gpu: Gpu }) {
  const use = gpu.values.get("utilization_percent");
  const hot = tone("gpu", "temperature_celsius", gpu.values.get("temperature_celsius"));
  const fullMemory = tone("gpu", "memory_percent", gpu.values.get("memory_percent"));
  const text = `${gpu.title}: util ${formatValue(use, "%")}, memory ${formatValue(gpu.values.get("memory_percent"), "%")}, ${formatValue(gpu.values.get("temperature_celsius"), "°C")}, ${formatValue(gpu.values.get("power_draw_watts"), "W")}`;
  return (
    <div class={`gpu-cell ${hot || fullMemory}`} title={text} tabIndex={0} aria-label={text}>
      <span>{gpuNumber(gpu.labels)}</span>
      <em>{formatDegrees(gpu.values.get("temperature_celsius"))}</em>
      <b>{formatValue(use, "%")}</b>
      <i class="use" style={{ width: `${Math.min(use ?? 0, 100)}%` }} />
    </div>
  );
}

function Spark({ series }: { series: Series }) {
  const x = series.x.slice(-60);
  const y = series.y.slice(-60);
  if (x.length < 2) return null;
  const span = x[x.length - 1] - x[0] || 1;
  const path = x.map((at, k) => `${k ? "L" : "M"}${(((at - x[0]) / span) * 100).toFixed(1)} ${(20 - ((y[k] ?? 0) / 100) * 18).toFixed(1)}`).join("");
  return <svg class="spark" viewBox="0 0 100 21" preserveAspectRatio="none" aria-hidden="true"><path d={path} /></svg>;
}

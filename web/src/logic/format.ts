// Numbers as people read them, with their unit; never a number where there is none. The terminal and reports have the same
// in src/trainvitals/views/data/quantities.py; both are tested against tests/data/formats.json.
import type { Value } from "../data/types.ts";

export const NONE = "–";

export function toNumber(value: Value | undefined): number | null {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return null;
}

export function formatNumber(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return NONE;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en-US");
  if (size >= 1e-4 && size < 1e7) {
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en-US", { maximumFractionDigits: Math.min(decimals, 12) });
  }
  return value.toExponential(Math.max(digits - 2, 0)).replace(/\.?0+e/, "e").replace("e+", "e");
}

// "1 run", "12,000 runs".
export function formatCount(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

const COUNTS: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// For axes and tight places: 1.2M, 35k.
export function formatShort(value: number): string {
  const size = Math.abs(value);
  for (const [unit, letter] of COUNTS) {
    if (size >= unit) return trim((value / unit).toPrecision(3)) + letter;
  }
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace(/\.0e/, "e");
  return trim(value.toPrecision(4));
}

function trim(text: string): string {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

export function formatBytes(count: number): string {
  let size = count;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(size) < 1024) return `${size.toFixed(unit === "B" || Math.abs(size) >= 99.5 ? 0 : 1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(Math.abs(size) >= 99.5 ? 0 : 1)} TB`;
}

// A value of a metric with its unit, rescaled where that reads better: 24,394 MB is 23.8 GB.
export function formatValue(value: Value | undefined, unit = ""): string {
  const number = toNumber(value);
  if (number === null || !Number.isFinite(number)) return formatNumber(number);
  switch (unit) {
    case "MB":
      return formatBytes(number * 1048576);
    case "GB":
      return formatBytes(number * 1073741824);
    case "MB/s":
      return `${formatBytes(number * 1048576)}/s`;
    case "s":
      return formatSeconds(number);
    case "%":
      return `${number >= 99.95 || number < 0.05 ? Math.round(number) : number.toFixed(number < 10 ? 1 : 0)} %`;
    case "J":
      return formatEnergy(number);
    case "°C":
      return `${Math.round(number)} °C`;
    case "W":
      return Math.abs(number) < 10_000 ? `${formatNumber(number, 3)} W` : `${formatNumber(number / 1000, 3)} kW`;
    case "MHz":
      return Math.abs(number) < 1000 ? `${formatNumber(number, 3)} MHz` : `${trim((number / 1000).toFixed(2))} GHz`;
    case "s/s": // seconds of every second
      return formatValue(number * 100, "%");
    case "J/s":
      return formatValue(number, "W");
    case "samples/s":
      return `${formatShort(number)} samples/s`;
    case "":
      return formatNumber(number);
    default:
      return `${formatNumber(number, 3)} ${unit}`;
  }
}

// Ticks of an axis. Where rounding would give two of them the same label, or a label that is not the tick, they are
// written in full.
export function labelTicks(ticks: (number | null | undefined)[], unit: string, withUnit: boolean): string[] {
  // Seconds of every second are shown as a share.
  if (unit === "s/s") return labelTicks(ticks.map((tick) => (typeof tick === "number" ? tick * 100 : tick)), "%", withUnit);
  const some = ticks.filter((tick) => tick !== null && tick !== undefined);
  const short = withUnit ? (tick: number) => formatValue(tick, unit).replace(".0 ", " ") : formatShort;
  let label = short;
  const step = Math.min(...some.slice(1).map((tick, at) => Math.abs(tick - some[at])).filter(Boolean));
  const isOff = (tick: number) => short(tick).endsWith(` ${unit}`) && Math.abs(Number(short(tick).slice(0, -unit.length - 1)) - tick) > step / 100;
  if (new Set(some.map(short)).size < some.length || some.some(isOff)) {
    const digits = Math.min(Math.max(Math.ceil(-Math.log10(step) - 1e-9) + 1, 0), 12);
    label = (tick) => tick.toLocaleString("en-US", { maximumFractionDigits: digits }) + (withUnit ? ` ${unit}` : "");
  }
  return ticks.map((tick) => (tick === null || tick === undefined ? "" : label(tick)));
}

// Round numbers on a logarithmic axis. Where fewer than two of them are in sight, evenly spaced ones.
export function splitLog(low: number, high: number): number[] {
  const found: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (let digit = 1; digit < 10; digit++) {
      const tick = Number(`${digit}e${power}`);
      if (tick >= low && tick <= high) found.push(tick);
    }
  }
  return found.length > 1 ? found : splitLinear(low, high);
}

// About four round numbers.
export function splitLinear(low: number, high: number): number[] {
  const rough = (high - low) / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  return splitEvenly(low, high, size * (rough < 1.5 * size ? 1 : rough < 3.5 * size ? 2 : rough < 7.5 * size ? 5 : 10));
}

// The multiples of a step.
export function splitEvenly(low: number, high: number, step: number): number[] {
  const start = Math.ceil(low / step);
  return Array.from({ length: Math.max(Math.floor(high / step) - start + 1, 0) }, (_, at) => (start + at) * step);
}

// A short time as a measurement: 12.3 ms.
export function formatSeconds(seconds: number): string {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.9995e-3) return `${trim((seconds * 1e6).toPrecision(3))} µs`; // above, three digits are 1 ms
  if (size < 0.9995) return `${trim((seconds * 1e3).toPrecision(3))} ms`;
  if (size < 60) return `${trim(seconds.toPrecision(3))} s`;
  return formatSpan(seconds);
}

// How long something took or will take: 4 min 05 s.
export function formatSpan(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  if (seconds < 9.95) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${pad(whole % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${pad(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}

export function formatEnergy(joules: number | null | undefined): string {
  if (joules === null || joules === undefined) return NONE;
  let amount = joules / 3600;
  for (const unit of ["Wh", "kWh"]) {
    if (amount < 999.5) return `${formatNumber(amount, 3)} ${unit}`;
    amount /= 1000;
  }
  return `${formatNumber(amount, 3)} MWh`;
}

export function formatPercent(share: number | null | undefined): string {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function formatChange(change: number | null): string {
  if (change === null) return NONE;
  const percent = change * 100;
  const sign = percent > 0 ? "+" : percent < 0 ? "−" : "±";
  return `${sign}${formatNumber(Math.abs(percent), 3)} %`;
}

// That a difference is not chance; never rounded up to certainty.
export function formatConfidence(share: number | null | undefined): string {
  if (share === null || share === undefined) return NONE;
  return share > 0.9999 ? "> 99.99 %" : `${Math.floor(share * 10_000) / 100} %`;
}

// Times in the viewer's zone.
export function formatClock(text: string | null | undefined, withSeconds = false): string {
  if (!text) return NONE;
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return text;
  const today = new Date();
  const sameYear = moment.getFullYear() === today.getFullYear();
  const sameDay = sameYear && moment.toDateString() === today.toDateString();
  const time: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", ...(withSeconds && { second: "2-digit" }) };
  const day: Intl.DateTimeFormatOptions = { day: "numeric", month: "short", ...(!sameYear && { year: "numeric" }) };
  return moment.toLocaleString(undefined, sameDay ? { ...time, hour12: false } : { ...day, ...time, hour12: false });
}

export function formatAgo(text: string | null | undefined, now = Date.now()): string {
  if (!text) return NONE;
  const seconds = (now - Date.parse(text)) / 1000;
  if (!Number.isFinite(seconds)) return NONE;
  return seconds < 0 ? "just now" : `${formatSpan(seconds)} ago`;
}

// The marks of a time axis in the viewer's zone, as short as their distance allows; the day where it changes.
export function formatTimes(ticks: number[]): string[] {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : ticks[0] % 60 ? 1 : 60;
  let before = "";
  return ticks.map((tick) => {
    const moment = new Date(tick * 1000);
    const day = moment.toLocaleDateString(undefined, { day: "numeric", month: "short" });
    const time = step >= 86_400 ? "" : clock(moment, step);
    const text = day === before ? time || day : before === "" && time ? time : `${day}${time && time !== "00:00" ? ` ${time}` : ""}`;
    before = day;
    return text;
  });
}

function clock(moment: Date, step: number): string {
  const text = `${pad(moment.getHours())}:${pad(moment.getMinutes())}`;
  if (step >= 60) return text;
  const seconds = `${text}:${pad(moment.getSeconds())}`;
  return step >= 1 ? seconds : `${seconds}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
}

// x of a chart, in words.
export function formatX(axis: string, x: number): string {
  if (axis === "step") return `step ${Math.round(x).toLocaleString("en-US")}`;
  if (axis === "time") return new Date(x * 1000).toLocaleString(undefined, { hour12: false });
  if (axis === "relative") return formatSpan(x);
  return `${axis} ${formatNumber(x)}`;
}

export function formatConfig(value: unknown): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return formatNumber(value, 6);
  return typeof value === "string" ? value : JSON.stringify(value);
}

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { formatBytes, formatChange, formatConfidence, formatCount, formatEnergy, formatNumber, formatSeconds, formatShort, formatSpan, formatTimes, formatValue, formatX, labelTicks, splitLog, toNumber } from "../src/logic/format.ts";

const cases = JSON.parse(readFileSync(new URL("../../tests/data/formats.json", import.meta.url), "utf8")) as Record<string, [number | null, string][]>;
const formats: Record<string, (value: number | null) => string> = {
  value: formatNumber, change: formatChange, confidence: formatConfidence, duration: formatSpan, energy: formatEnergy,
  seconds: (value) => formatSeconds(value!), bytes: (value) => formatBytes(value!),
};

for (const kind of Object.keys(cases)) {
  test(`a ${kind} is the same text as in the terminal, but for the dashes`, () => {
    for (const [value, text] of cases[kind]) assert.equal(formats[kind](value).replace(/[–−]/, "-"), text);
  });
}

test("a value that is missing is a dash, never a zero", () => {
  assert.equal(formatValue(null), "–");
  assert.equal(formatValue(undefined, "MB"), "–");
  assert.equal(formatSpan(null), "–");
});

test("NaN and infinity are shown as what they are", () => {
  assert.equal(formatValue("NaN"), "NaN");
  assert.equal(formatValue("Infinity", "MB"), "∞");
  assert.equal(formatValue("-Infinity"), "−∞");
  assert.ok(Number.isNaN(toNumber("NaN")!));
  assert.equal(toNumber("hello" as string), null);
});

test("units are rescaled to what a person reads", () => {
  assert.equal(formatValue(24394.3, "MB"), "23.8 GB");
  assert.equal(formatValue(0.0123, "s"), "12.3 ms");
  assert.equal(formatValue(97.2, "%"), "97 %");
  assert.equal(formatValue(1.5, "MB/s"), "1.5 MB/s");
  assert.equal(formatEnergy(3_600_000), "1,000 Wh".replace("1,000 Wh", "1 kWh"));
  assert.equal(formatBytes(0), "0 B");
});

test("one of a thing is not several", () => {
  assert.equal(formatCount(1, "run"), "1 run");
  assert.equal(formatCount(0, "run"), "0 runs");
  assert.equal(formatCount(12_000, "metric"), "12,000 metrics");
});

test("numbers keep four digits and no more", () => {
  assert.equal(formatNumber(0.021341), "0.02134");
  assert.equal(formatNumber(0.0000123456), "1.23e-5");
  assert.equal(formatNumber(12480), "12,480");
  assert.equal(formatNumber(0), "0");
  assert.equal(formatShort(1_250_000), "1.25M");
  assert.equal(formatShort(0), "0");
});

test("spans and changes read as words", () => {
  assert.equal(formatSpan(245), "4 min 05 s");
  assert.equal(formatSpan(7980), "2 h 13 min");
  assert.equal(formatChange(-0.125), "−12.5 %");
  assert.equal(formatX("step", 1234.4), "step 1,234");
});

test("marks of a time axis are in 24 hours, with the day where it changes", () => {
  const midnight = new Date(2026, 0, 31, 23, 30).getTime() / 1000;
  assert.match(formatTimes([1_800_000_010])[0], /^\d\d:\d\d:10$/, "a mark alone is where it says");
  const marks = formatTimes([midnight, midnight + 1800, midnight + 3600]);
  assert.equal(marks[0], "23:30");
  assert.match(marks[1], /Feb/);
  assert.equal(marks[2], "00:30");
});

test("shares of time, clocks and energy per second have a unit that people use", () => {
  assert.equal(formatValue(0.5, "s/s"), "50 %");
  assert.equal(formatValue(1980, "MHz"), "1.98 GHz");
  assert.equal(formatValue(420, "J/s"), "420 W");
});

test("ticks that would look alike are written in full, with their unit", () => {
  assert.deepEqual(labelTicks([256, 512, 1024], "MB", true), ["256 MB", "512 MB", "1 GB"]);
  assert.deepEqual(labelTicks([317.5, 318, 318.5], "MB", true), ["317.5 MB", "318 MB", "318.5 MB"]);
  assert.deepEqual(labelTicks([24394.25, null, 24394.5], "MB", true), ["24,394.25 MB", "", "24,394.5 MB"]);
  assert.deepEqual(labelTicks([1000001, 1000002], "", false), ["1,000,001", "1,000,002"]);
});

test("a logarithmic axis has round ticks, and more than one", () => {
  assert.deepEqual(splitLog(0.2592, 2.9), [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2]);
  assert.deepEqual(splitLog(0.9, 110).filter((tick) => String(tick).startsWith("1")), [1, 10, 100]);
  assert.deepEqual(splitLog(2.1, 3.9), [2.5, 3, 3.5]);
  assert.ok(splitLog(41000, 41900).length > 2);
});

test("no tick is labeled with another number", () => {
  assert.deepEqual(labelTicks([0, 0.25, 0.5, 0.75, 1], "%", true), ["0 %", "0.25 %", "0.5 %", "0.75 %", "1 %"]);
  assert.deepEqual(labelTicks([0, 20, 40], "%", true), ["0 %", "20 %", "40 %"]);
  assert.deepEqual(labelTicks([0, 5, 10], "%", true), ["0 %", "5 %", "10 %"]);
  assert.deepEqual(labelTicks([0, 0.00025, 0.0005], "s/s", true), ["0 %", "0.025 %", "0.05 %"]);
  assert.deepEqual(labelTicks([37.5, 40, 42.5], "°C", true), ["37.5 °C", "40 °C", "42.5 °C"]);
});

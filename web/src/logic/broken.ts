// How many values are NaN or infinite, in a few letters.
import type { Series } from "../data/types.ts";

export function describeBroken(series: Series[]): string {
  const words = new Set(series.flatMap((item) => (item.nonfinite ?? []).map(([, word]) => word)));
  if (!words.size) return "";
  const count = series.reduce((sum, item) => sum + (item.nonfinite_total ?? item.nonfinite?.length ?? 0), 0);
  const atLeast = series.some((item) => item.nonfinite?.length && item.nonfinite_total === undefined);
  const kinds = [words.has("NaN") && "NaN", (words.has("Infinity") || words.has("-Infinity")) && "∞"].filter(Boolean);
  return `${atLeast ? "at least " : ""}${count.toLocaleString("en-US")} ${kinds.join(" or ")}`;
}

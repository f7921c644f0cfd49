// Which media a step slider shows.
import type { MediaGroup, MediaItem } from "../data/types.ts";

export const KINDS = ["image", "table", "text", "histogram"] as const;

// Tables of responses with their scores, as `trainvitals.integrations.samples` names them.
export const SAMPLES = ["val/generations", "train/completions"];

// The steps of a group, ascending; what was logged without one comes first, as null.
export function stepsOf(items: MediaItem[]): (number | null)[] {
  return [...new Set(items.map((item) => item.step))].sort((a, b) => (a ?? -Infinity) - (b ?? -Infinity));
}

// All steps of all groups, ascending.
export function allSteps(groups: MediaGroup[]): number[] {
  const found = new Set(groups.flatMap((group) => group.items.map((item) => item.step)));
  return [...found].filter((step): step is number => step !== null).sort((a, b) => a - b);
}

// The newest step that is not after the wanted one; the first if all are. Undefined asks for the newest.
export function stepAt(steps: (number | null)[], wanted: number | undefined): number | null {
  if (wanted === undefined) return steps[steps.length - 1] ?? null;
  let found = steps[0] ?? null;
  for (const step of steps) if (step === null || step <= wanted) found = step;
  return found;
}

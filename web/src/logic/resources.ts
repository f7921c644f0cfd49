import type { Resource } from "../data/types.ts";

const MANY = 4;

// Statistics by metric, then device; of more than a few devices one row for all: the means of their numbers, the ends of
// their ends.
export function byMetric(rows: Resource[]): Resource[] {
  const groups = new Map<string, Resource[]>();
  for (const row of rows) {
    const key = `${row.table} ${row.metric}`;
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return [...groups.values()].flatMap((group) => (group.length > MANY ? [together(group)] : group));
}

function together(group: Resource[]): Resource {
  const mean = (pick: (row: Resource) => number) => group.reduce((sum, row) => sum + pick(row), 0) / group.length;
  return {
    ...group[0],
    subject: `all ${group.length}`,
    low: Math.min(...group.map((row) => row.low)),
    mean: mean((row) => row.mean),
    median: mean((row) => row.median),
    p95: mean((row) => row.p95),
    high: Math.max(...group.map((row) => row.high)),
  };
}

// Panels made by the user: what each draws is text that the server understands (views/data/chosen.py).
export interface OwnPanel {
  id: string;
  title: string;
  items: string[]; // names, patterns such as val/* or /block_[12]/, expressions
  x: string; // empty: as the page
}

// What was stored by this or another version: what cannot be a panel is left out.
export function parsePanels(text: string | null): OwnPanel[] {
  let found: unknown;
  try {
    found = JSON.parse(text ?? "[]");
  } catch {
    return [];
  }
  if (!Array.isArray(found)) return [];
  return found.flatMap((item): OwnPanel[] => {
    if (typeof item !== "object" || item === null) return [];
    const { id, title, items, x } = item as Record<string, unknown>;
    if (typeof id !== "string" || !id || !Array.isArray(items)) return [];
    return [{ ...item, id, title: asText(title), items: items.filter((one) => typeof one === "string"), x: asText(x) }];
  });
}

function asText(value: unknown): string {
  return typeof value === "string" ? value : "";
}

// One thing to draw in each line.
export function parseItems(text: string): string[] {
  return [...new Set(text.split("\n").map((line) => line.trim()).filter(Boolean))];
}

export function titleOf(panel: OwnPanel): string {
  return panel.title || panel.items.join(", ") || "New panel";
}

// A panel that is changed keeps its place; a new one is the last.
export function putPanel(panels: OwnPanel[], panel: OwnPanel): OwnPanel[] {
  return panels.some((item) => item.id === panel.id) ? panels.map((item) => (item.id === panel.id ? panel : item)) : [...panels, panel];
}

const COUNTS = /epoch|token|sample|example|step|iter|frame|episode|seen/i;
const MOST_AXES = 300;

// Every metric may be an axis; those that count something come first.
export function axisNames(names: string[], skip: ReadonlySet<string>): string[] {
  const usual = names.filter((name) => name !== "step" && !skip.has(name.split("/")[0]));
  const rank = (name: string) => (COUNTS.test(name) && !/time|per_sec|_rate/i.test(name) ? 0 : 1);
  return usual.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b)).slice(0, MOST_AXES);
}

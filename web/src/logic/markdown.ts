// Markdown of notes as a tree, which the page draws with elements of its own: whatever looks like HTML stays text, and a
// link leads to the web or nowhere.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "break" }
  | { kind: "strong" | "em" | "del"; children: Inline[] }
  | { kind: "link"; href: string; children: Inline[] };

export interface Item {
  checked: boolean | null;
  blocks: Block[];
}

export type Block =
  | { kind: "heading"; level: number; children: Inline[] }
  | { kind: "paragraph"; children: Inline[] }
  | { kind: "code"; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; ordered: boolean; start: number; items: Item[] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

// Deeper than anyone writes; text that nests further is shown as it is.
const DEEPEST = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>\s?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const DIVIDER = /^\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?\s*)?$/;

export function parseMarkdown(text: string, depth = 0): Block[] {
  const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");
  if (depth > DEEPEST) return [{ kind: "paragraph", children: [{ kind: "text", text }] }];
  const found: Block[] = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    const item = ITEM.exec(line);
    if (!line.trim()) {
      at++;
    } else if (fence) {
      const inside: string[] = [];
      for (at++; at < lines.length && !isClosing(lines[at], fence[1]); at++) inside.push(lines[at]);
      at++;
      found.push({ kind: "code", text: inside.join("\n") });
    } else if (heading) {
      found.push({ kind: "heading", level: heading[1].length, children: parseInline(heading[2]) });
      at++;
    } else if (RULE.test(line)) {
      found.push({ kind: "rule" });
      at++;
    } else if (QUOTE.test(line)) {
      const inside: string[] = [];
      for (; at < lines.length && QUOTE.test(lines[at]); at++) inside.push(lines[at].replace(QUOTE, ""));
      found.push({ kind: "quote", blocks: parseMarkdown(inside.join("\n"), depth + 1) });
    } else if (item) {
      const ordered = /\d/.test(item[2]);
      const items: Item[] = [];
      for (let next: RegExpExecArray | null = item; next && /\d/.test(next[2]) === ordered && !RULE.test(lines[at]); next = at < lines.length ? ITEM.exec(lines[at]) : null) {
        const inside = [lines[at].slice(next[0].length)];
        const indent = next[1].length + 2;
        for (at++; at < lines.length && belongs(lines, at, indent); at++) inside.push(lines[at].slice(Math.min(lines[at].search(/\S|$/), next[0].length)));
        const box = /^\[([ xX])\]\s+/.exec(inside[0]);
        if (box) inside[0] = inside[0].slice(box[0].length);
        items.push({ checked: box ? box[1] !== " " : null, blocks: parseMarkdown(inside.join("\n"), depth + 1) });
      }
      found.push({ kind: "list", ordered, start: ordered ? parseInt(item[2], 10) : 1, items });
    } else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "") && splitRow(line).length === splitRow(lines[at + 1]).length) {
      const head = splitRow(line).map((cell) => parseInline(cell));
      const rows: Inline[][][] = [];
      for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at++) {
        const cells = splitRow(lines[at]);
        rows.push(head.map((_, column) => parseInline(cells[column] ?? "")));
      }
      found.push({ kind: "table", head, rows });
    } else {
      const inside = [line];
      for (at++; at < lines.length && lines[at].trim() && !begins(lines[at]); at++) inside.push(lines[at]);
      found.push({ kind: "paragraph", children: parseInline(inside.map((part) => part.trimStart()).join("\n")) });
    }
  }
  return found;
}

function isClosing(line: string, fence: string): boolean {
  const found = FENCE.exec(line);
  return found !== null && found[1][0] === fence[0] && found[1].length >= fence.length && line.trim() === found[1];
}

function begins(line: string): boolean {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

// Whether a line is part of the item above: indented, or after an empty line if what follows is indented.
function belongs(lines: string[], at: number, indent: number): boolean {
  const line = lines[at];
  if (line.trim()) return line.search(/\S/) >= indent || (!!lines[at - 1].trim() && !begins(line));
  const next = lines[at + 1];
  return next !== undefined && !!next.trim() && next.search(/\S/) >= indent;
}

function splitRow(line: string): string[] {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]] as const;
const ADDRESS = /^https?:\/\/[^\s<>"'`]+/i;

export function parseInline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let plain = "";
  const push = (item: Inline) => {
    if (plain) found.push({ kind: "text", text: plain });
    plain = "";
    found.push(item);
  };
  let at = 0;
  while (at < text.length) {
    const here = text[at];
    if (here === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (here === "\n") {
      // As typed: notes are written in a box that shows where its lines end.
      push({ kind: "break" });
      at++;
    } else if (here === "`") {
      const ticks = /^`+/.exec(text.slice(at))![0];
      const end = text.indexOf(ticks, at + ticks.length);
      if (end > at) push({ kind: "code", text: text.slice(at + ticks.length, end).trim() });
      else plain += ticks;
      at = end > at ? end + ticks.length : at + ticks.length;
    } else if (here === "[" && depth <= DEEPEST) {
      const link = /^\[([^\[\]]*)\]\(\s*<?([^\s()<>]*)>?(?:\s+"[^"]*")?\s*\)/.exec(text.slice(at));
      const href = link && safeAddress(link[2]);
      if (link && href) push({ kind: "link", href, children: parseInline(link[1], DEEPEST) });
      else plain += link ? link[0] : here;
      at += link ? link[0].length : 1;
    } else if (here === "h" && !/\w/.test(text[at - 1] ?? "") && ADDRESS.test(text.slice(at))) {
      const address = ADDRESS.exec(text.slice(at))![0].replace(/[.,;:!?)\]]+$/, "");
      const href = depth < DEEPEST && safeAddress(address);
      if (href) push({ kind: "link", href, children: [{ kind: "text", text: address }] });
      else plain += address;
      at += address.length;
    } else {
      const mark = depth < DEEPEST ? MARKS.find(([sign]) => text.startsWith(sign, at) && opens(text, at, sign)) : undefined;
      const end = mark ? findClosing(text, at, mark[0]) : -1;
      if (mark && end > 0) {
        push({ kind: mark[1], children: parseInline(text.slice(at + mark[0].length, end), depth + 1) });
        at = end + mark[0].length;
      } else {
        const same = /^([*_~])\1*/.exec(text.slice(at, at + 100))?.[0] ?? here; // half of "**" is no sign of its own
        plain += same;
        at += same.length;
      }
    }
  }
  if (plain) found.push({ kind: "text", text: plain });
  return found;
}

function opens(text: string, at: number, sign: string): boolean {
  const next = text[at + sign.length] ?? " ";
  return !/\s/.test(next) && (sign[0] !== "_" || !/\w/.test(text[at - 1] ?? ""));
}

function findClosing(text: string, at: number, sign: string): number {
  for (let end = text.indexOf(sign, at + sign.length + 1); end > 0; end = text.indexOf(sign, end + 1)) {
    if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") continue;
    if (sign.length === 1 && text[end + 1] === sign) {
      end++; // two of them are another sign
      continue;
    }
    if (sign[0] === "_" && /\w/.test(text[end + sign.length] ?? "")) continue;
    return end;
  }
  return -1;
}

// Only addresses of the web: no javascript:, data: or file:, and nothing relative, which would lead within this page.
function safeAddress(text: string): string | null {
  try {
    const address = new URL(text);
    return address.protocol === "https:" || address.protocol === "http:" ? address.href : null;
  } catch {
    return null;
  }
}

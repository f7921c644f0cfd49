// What a program printed, as lines to read.
import type { TextPart } from "../data/types.ts";
import { participantTitle } from "./metrics.ts";

// A file as known so far, extended by a newly read part.
export function follow(known: TextPart | null, more: TextPart): TextPart {
  // Another file, a restarted one, or one that grew too much in the meantime.
  if (!known || known.name !== more.name || more.start !== known.next) return more;
  const finished = known.text.slice(0, known.text.lastIndexOf("\n") + 1);
  return { ...more, start: known.start, cut: known.cut, text: finished + more.text };
}

export interface Shown {
  text: string;
  folded: number; // states of the same progress bar before this one
}

const BAR = /\d\s*%|\d+\/\d+|it\/s|s\/it/;

// The words of a progress bar without its numbers and the bar.
function shape(line: string): string {
  return line.replace(/[\d.,:%|#█▏▎▍▌▋▊▉ ?=>-]+/g, " ").trim();
}

// Lines; consecutive states of one progress bar are folded into the last of them.
export function linesOf(text: string, folded: boolean): Shown[] {
  const found: Shown[] = [];
  let before = "";
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const bar = folded && BAR.test(line) ? shape(line) : "";
    const last = found[found.length - 1];
    if (bar && bar === before) found[found.length - 1] = { text: line, folded: last.folded + 1 };
    else found.push({ text: line, folded: 0 });
    before = bar;
  }
  return found;
}

export function matching(lines: Shown[], wanted: string): Shown[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? lines.filter((line) => words.every((word) => line.text.toLowerCase().includes(word))) : lines;
}

// "console.rank0.stderr.log" is "rank 0 stderr", "console.role-rollout.rank0.log" is "rollout 0".
export function consoleTitle(name: string): string {
  return name.replace(/^console\./, "").replace(/\.log$/, "").replaceAll(".", " ").replace(/^(?:role-(\w+) )?rank(\d)/, (_, role, digit) => participantTitle(role, digit));
}

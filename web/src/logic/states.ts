// Words over time, as pieces to draw.
import type { States } from "../data/types.ts";

export const QUIET = "none";

export interface Piece {
  start: number;
  end: number;
  word: string;
}

// Each word from when it came until the next, the last until `end`; cut to what is shown.
export function pieces(states: States, start: number, end: number): Piece[] {
  const found: Piece[] = [];
  states.changes.forEach(([time, word], at) => {
    const until = states.changes[at + 1]?.[0] ?? end;
    const piece = { start: Math.max(time, start), end: Math.min(until, end), word };
    if (piece.end > piece.start) found.push(piece);
  });
  return found;
}

// Every word but the quiet one, the longest held first.
export function wordsOf(states: States[], start: number, end: number): string[] {
  const held = new Map<string, number>();
  for (const item of states) {
    for (const piece of pieces(item, start, end)) {
      if (piece.word !== QUIET) held.set(piece.word, (held.get(piece.word) ?? 0) + piece.end - piece.start);
    }
  }
  return [...held].sort(([, a], [, b]) => b - a).map(([word]) => word);
}

export function wordAt(states: States, time: number): string | null {
  let found: string | null = null;
  for (const [at, word] of states.changes) {
    if (at > time) break;
    found = word;
  }
  return found;
}

// Colours that stay apart for colour-blind eyes (after Okabe and Ito), one set per theme; then dashes.
export const DARK = ["#56b4e9", "#e69f00", "#2fc59b", "#f0e442", "#e07bb5", "#f2764a", "#9fb4ff", "#c9c9c9"];
export const LIGHT = ["#0072b2", "#c46a00", "#00805c", "#8a7a00", "#b0508a", "#c43c1a", "#4a57c9", "#555555"];
const DASHES: number[][] = [[], [6, 3], [2, 3], [9, 3, 2, 3]];

export interface LineStyle {
  stroke: string;
  dash: number[];
}

export function lineStyle(at: number, dark: boolean): LineStyle {
  const palette = dark ? DARK : LIGHT;
  return { stroke: palette[at % palette.length], dash: DASHES[Math.floor(at / palette.length) % DASHES.length] };
}

// A CSS background that shows a line's colour and dashes.
export function swatch({ stroke, dash }: LineStyle): string {
  if (!dash.length) return stroke;
  let end = 0;
  const stops = dash.map((length, at) => `${at % 2 ? "transparent" : stroke} ${end}px ${(end += length)}px`);
  return `repeating-linear-gradient(90deg, ${stops.join(", ")})`;
}

// Viridis-like, dark to bright, equal steps to every kind of eye; for heat maps.
const STOPS: [number, number, number][] = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121],
  [110, 206, 88], [181, 222, 43], [253, 231, 37],
];

export function heat(share: number): [number, number, number] {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const at = Math.min(Math.floor(place), STOPS.length - 2);
  const rest = place - at;
  return [0, 1, 2].map((k) => Math.round(STOPS[at][k] + (STOPS[at + 1][k] - STOPS[at][k]) * rest)) as [number, number, number];
}

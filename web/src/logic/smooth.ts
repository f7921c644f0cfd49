// The line that fits best around each point, at that point: neighbours on both sides weigh less with their distance on
// x, so the curve neither lags behind a trend nor depends on points that downsampling left out. NaN and infinity stay
// gaps. `amount` is 0 (none) to 1; analysis/smoothing.py does the same for pictures and the terminal.
export const USUAL_SMOOTHING = 0.15;
const WIDEST = 0.1;
const LEAST_SPREAD = 1e-9;

// Weighted sums over the points on one side: weights, distances, their squares, values, values times distances.
type Sums = [number, number, number, number, number];

// The share of what is shown over which the weight of a point falls to a third.
export function smoothingWindow(amount: number): number {
  return Math.min(Math.max(amount, 0), 1) * WIDEST;
}

export function smooth(x: ArrayLike<number>, y: ArrayLike<number | null>, amount: number): (number | null)[] {
  const count = y.length;
  const width = count ? (x[count - 1] - x[0]) * smoothingWindow(amount) : 0;
  if (!(width > 0)) return Array.from(y);
  let low = Infinity;
  let high = -Infinity;
  for (let at = 0; at < count; at++) {
    const value = y[at];
    if (!isKnown(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const left = sumBefore(count, (at) => (x[at] - x[0]) / width, (at) => y[at]);
  const right = sumBefore(count, (at) => (x[count - 1] - x[count - 1 - at]) / width, (at) => y[count - 1 - at]);
  return Array.from(y, (value, at) => {
    if (!isKnown(value)) return null;
    const before = left[at];
    const after = right[count - 1 - at];
    const weight = before[0] + after[0] - 1; // the point itself is on both of its sides
    const distance = (before[1] - after[1]) / weight;
    const spread = (before[2] + after[2]) / weight - distance * distance;
    const mean = (before[3] + after[3] - value) / weight;
    const slope = spread > LEAST_SPREAD ? ((before[4] - after[4]) / weight - distance * mean) / spread : 0;
    // A line that is steep at the end of the curve would go beyond everything that was logged.
    return Math.min(Math.max(mean - slope * distance, low), high);
  });
}

function isKnown(value: number | null): value is number {
  return value !== null && Number.isFinite(value);
}

function sumBefore(count: number, placeOf: (at: number) => number, valueOf: (at: number) => number | null): Sums[] {
  const found: Sums[] = [];
  let [weight, distance, square, total, product]: Sums = [0, 0, 0, 0, 0];
  for (let at = 0; at < count; at++) {
    const by = at ? placeOf(at) - placeOf(at - 1) : 0;
    const fade = Math.exp(-by);
    square = fade * (square - 2 * by * distance + by * by * weight);
    distance = fade * (distance - by * weight);
    product = fade * (product - by * total);
    weight *= fade;
    total *= fade;
    const value = valueOf(at);
    if (isKnown(value)) {
      weight += 1;
      total += value;
    }
    found.push([weight, distance, square, total, product]);
  }
  return found;
}

// Exponential moving average of both sides alike, so that a line does not lag behind what it smooths. Its weight follows
// the distance on x, so that points left out by downsampling do not change how smooth it is. `amount` is 0 (none) to 1;
// the window is that share of what is shown, at most a tenth.
export function smooth(x: ArrayLike<number>, y: ArrayLike<number | null>, amount: number): (number | null)[] {
  const count = y.length;
  if (!count || amount <= 0) return Array.from(y);
  const width = (x[count - 1] - x[0]) * Math.min(Math.max(amount, 0), 1) * 0.1;
  if (!(width > 0)) return Array.from(y);
  const sums = new Float64Array(count);
  const weights = new Float64Array(count);
  const pass = (from: number, to: number, step: number) => {
    let sum = 0;
    let weight = 0;
    let before = x[from];
    for (let at = from; at !== to; at += step) {
      const fade = Math.exp(-Math.abs(x[at] - before) / width);
      before = x[at];
      // What lies before a point; the point itself is counted once, below.
      sums[at] += sum * fade;
      weights[at] += weight * fade;
      const value = y[at];
      const known = value !== null && Number.isFinite(value);
      sum = sum * fade + (known ? value : 0);
      weight = weight * fade + (known ? 1 : 0);
    }
  };
  pass(0, count, 1);
  pass(count - 1, -1, -1);
  return Array.from(y, (value, at) => (value !== null && Number.isFinite(value) ? (sums[at] + value) / (weights[at] + 1) : null));
}

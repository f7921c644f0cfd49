// Exponential moving average whose weight follows the distance on x, so that points left out by downsampling do not
// change how smooth the line is. `amount` is 0 (none) to 1; the window is that share of what is shown, at most a tenth.
export function smooth(x: ArrayLike<number>, y: ArrayLike<number | null>, amount: number): (number | null)[] {
  const count = y.length;
  const found: (number | null)[] = new Array(count).fill(null);
  if (!count || amount <= 0) return Array.from(y);
  const width = (x[count - 1] - x[0]) * Math.min(Math.max(amount, 0), 1) * 0.1;
  if (!(width > 0)) return Array.from(y);
  let sum = 0;
  let weight = 0;
  let before = x[0];
  for (let at = 0; at < count; at++) {
    const value = y[at];
    const fade = Math.exp(-(x[at] - before) / width);
    sum *= fade;
    weight *= fade;
    before = x[at];
    if (value === null || !Number.isFinite(value)) continue;
    sum += value;
    weight += 1;
    found[at] = sum / weight;
  }
  return found;
}

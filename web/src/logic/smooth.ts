// Exponential moving average of what lies before a point and the point itself, so that a line never shows a jump
// before it happens. Divided by the weights so far, it begins at the first value. The weight follows the distance on x,
// so that points left out by downsampling do not change how smooth it is. `amount` is 0 (none) to 1; the window is that
// share of what is shown, at most a tenth. analysis/smoothing.py does the same for pictures.
export function smooth(x: ArrayLike<number>, y: ArrayLike<number | null>, amount: number): (number | null)[] {
  const count = y.length;
  const width = count ? (x[count - 1] - x[0]) * Math.min(Math.max(amount, 0), 1) * 0.1 : 0;
  if (!(width > 0)) return Array.from(y);
  let sum = 0;
  let weight = 0;
  let before = x[0];
  return Array.from(y, (value, at) => {
    const fade = Math.exp(-(x[at] - before) / width);
    before = x[at];
    sum *= fade;
    weight *= fade;
    if (value === null || !Number.isFinite(value)) return null;
    sum += value;
    weight += 1;
    return sum / weight;
  });
}

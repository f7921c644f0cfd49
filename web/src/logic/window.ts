// Which rows of a long table are drawn: those in view, and some beyond; a space stands for the others.

export interface Drawn {
  from: number;
  to: number; // the first that is not drawn any more
  above: number; // height of the rows before, in px
  below: number;
}

// `top` and `bottom` are the edges of what is in view, from the upper edge of the first row.
export function windowOf(heights: number[], top: number, bottom: number): Drawn {
  let from = 0;
  let above = 0;
  while (from < heights.length && above + heights[from] <= top) above += heights[from++];
  let to = from;
  let end = above;
  while (to < heights.length && end < bottom) end += heights[to++];
  let below = 0;
  for (let at = to; at < heights.length; at++) below += heights[at];
  return { from, to, above, below };
}

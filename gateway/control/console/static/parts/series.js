// What a chart makes of its values before it draws them. Pure.

/** A gap is a distance of more than this many steps. */
const GAP_STEPS = 2.5;
/** Live values come once a second, and the last steps of the history are late. */
const SHORTEST_GAP_S = 30;
const OUTLIER = 4;
const FEWEST = 20;

/** Breaks lines where values are missing: a null after the last value before each gap. */
export function withGaps(xs, values, step) {
  const longest = Math.max(GAP_STEPS * step, SHORTEST_GAP_S);
  const at = xs.flatMap((x, i) => (i > 0 && x - xs[i - 1] > longest ? [i] : []));
  if (!at.length) return [xs, values];
  const insert = (list, made) => list.flatMap((each, i) => (at.includes(i) ? [made(i), each] : [each]));
  return [insert(xs, (i) => xs[i - 1] + Math.min(step, longest) / 2), values.map((each) => insert(each, () => null))];
}

/**
 * The top of the scale: the highest value, or less if a few outliers would flatten all others. `cut` is the highest
 * value if it is above the top, else null.
 */
export function topOf(values) {
  const known = values.flat().filter((value) => value != null).sort((a, b) => a - b);
  const highest = known.at(-1) ?? 0;
  const usual = known[Math.floor(known.length * 0.97)] ?? 0;
  if (known.length >= FEWEST && usual > 0 && highest > OUTLIER * usual) return { top: 1.5 * usual, cut: highest };
  return { top: highest > 0 ? highest * 1.1 : 1, cut: null };
}

// Charts over time, drawn by uPlot in the theme's colours, each with a sentence for screen readers. The page loads
// uPlot before all modules with a script tag: its minified build is not a module.

import { fill, h, svg } from "../dom.js";
import { openDialog } from "./dialog.js";
import { topOf, withGaps } from "./series.js";

const HEIGHT = 170;
const LARGE = 460;
const drawn = new Set();
document.addEventListener("themechange", () => drawn.forEach((each) => each.redraw()));

/** The value of a colour's custom property in the current theme. */
export function colour(name, alpha = 1) {
  const probe = document.getElementById("main");
  const was = probe.style.outlineColor;
  probe.style.outlineColor = `var(--${name})`;
  const found = getComputedStyle(probe).outlineColor;
  probe.style.outlineColor = was;
  return alpha === 1 ? found : found.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}

const SHORTEST_S = 60;
/** Distances of the grid for values that are counted. */
const WHOLE = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
/** A shorter selection is a click. */
const SHORTEST_PX = 8;

/**
 * `series`: a list of `{name, colour, dash?, area?, quiet?}`, with colours as custom properties. `shown(value)` formats
 * a figure with its unit; `isWhole`: it has no fractions. `ceiling` fixes the top of the scale, else a few outliers are
 * cut off. `context` completes the title of the enlarged chart. `onzoom(from, to)` is called with a stretch that was
 * selected. Returns `{element, update(times, values, axis?)}`, with times in Unix seconds; `axis` is `{from, to, step}`:
 * the ends of the axis, and the distance of two values, for gaps.
 */
export function chart(options) {
  const small = drawing(options);
  const whole = [options.title, options.context].filter(Boolean).join(", ");
  let [large, last] = [null, null];
  const enlarge = h("button", { type: "button", class: "quiet icon enlarge", "aria-label": `Enlarge ${whole}`, onclick: open },
    svg("svg", { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true" }, svg("path", { d: "M1 1h6v2H3v4H1zm8 12h4V9h2v6H9z" })));
  small.element.querySelector("figcaption").append(enlarge);

  async function open() {
    const over = new AbortController();
    const onzoom = options.onzoom && ((from, to) => options.onzoom(from, to));
    large = drawing({ ...options, onzoom, height: LARGE, signal: over.signal });
    const closed = openDialog(whole, (close) => [large.element, h("div", { class: "buttons" }, h("button", { type: "button", class: "quiet", onclick: () => close() }, "Close"))], "wide");
    if (last) large.update(...last);
    await closed;
    over.abort();
    large = null;
  }
  return {
    element: small.element,
    update(...values) {
      last = values;
      small.update(...values);
      large?.update(...values);
    },
  };
}

function drawing({ title, series, shown, ceiling = null, height = HEIGHT, isTime = true, isWhole = false, xShown = null, onzoom = null, signal }) {
  const legend = h("span", { class: "legend" }, ...series.filter(({ quiet }) => !quiet).map(({ name, colour: key, dash }) =>
    h("span", {}, h("span", { class: `line ${dash ? "dashed" : ""} c-${key}` }), name)));
  const latest = h("span", { class: "latest" });
  const cutOff = h("span", { class: "cut" });
  const place = h("div", { class: "canvas", role: "img", "aria-label": title });
  const nothing = h("p", { class: "empty" }, "There are no measurements in this period.");
  const element = h("figure", { class: "plot" }, h("figcaption", {}, h("span", { class: "plot-title" }, title), latest, legend, cutOff), place, nothing);
  place.style.minHeight = nothing.style.minHeight = `${height}px`;
  let data = null;
  let plot = null;
  let ends = {};
  let top = 1;

  function options(width) {
    const ink = colour("muted");
    const axis = { stroke: ink, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px sans-serif", labelFont: "11px sans-serif" };
    return {
      width,
      height,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: onzoom !== null, y: false } },
      padding: [8, 30, 0, 0],
      scales: { x: { time: isTime, range: span }, y: { range: (_, low) => [Math.min(0, low ?? 0), ceiling ?? top] } },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 26, ...(isTime ? { values: times } : { values: (_, splits) => splits.map(xShown ?? String) }) },
        { ...axis, size: 58, space: 34, ...(isWhole ? { incrs: WHOLE } : {}), values: (_, splits) => splits.map((each) => shown(each)) },
      ],
      series: [{}, ...series.map(({ name, colour: key, dash, area }) => ({
        label: name,
        stroke: colour(key),
        width: dash ? 1 : 1.75,
        dash: dash ? [4, 4] : undefined,
        fill: area ? colour(key, 0.14) : undefined,
        points: { show: (u) => u.data[0].length < 3, size: 4 },
        spanGaps: false,
      }))],
      hooks: { setCursor: [tell], setSelect: [select] },
    };
  }

  function span() {
    const [low, high] = [data[0][0], data[0].at(-1)];
    return isTime ? [Math.min(ends.from ?? low, high - SHORTEST_S), Math.max(ends.to ?? high, high)] : [low, Math.max(high, low + 1)];
  }
  function select({ select: { left, width } }) {
    if (width > SHORTEST_PX) onzoom?.(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }
  function tell(u) {
    const at = u.cursor.idx;
    fill(latest, at == null ? "" : text(at));
  }
  function text(at) {
    const when = isTime ? new Date(data[0][at] * 1000).toLocaleTimeString("en-GB") : (xShown ?? String)(data[0][at]);
    return `${when}: ${series.map(({ name }, i) => `${name} ${shown(data[i + 1][at])}`).join(", ")}`;
  }
  function redraw() {
    const width = Math.floor(place.clientWidth);
    if (!data || width < 40) return;
    plot?.destroy();
    plot = new uPlot(options(width), data, place);
  }
  const sized = new ResizeObserver(() => {
    const width = Math.floor(place.clientWidth);
    if (plot && width >= 40 && width !== plot.width) plot.setSize({ width, height });
    else if (!plot) redraw();
  });
  sized.observe(place);
  const own = { redraw };
  drawn.add(own);
  signal.addEventListener("abort", () => {
    drawn.delete(own);
    sized.disconnect();
    plot?.destroy();
  });

  function update(xs, values, axis = {}) {
    ends = axis;
    const [times_, broken] = withGaps(xs, values, axis.step ?? Infinity);
    data = [times_, ...broken];
    const scale = topOf(values.filter((_, i) => !series[i].dash));
    top = scale.top;
    fill(cutOff, scale.cut === null || ceiling !== null ? null : `highest: ${shown(scale.cut)}, cut off`);
    const hasAny = values.some((each, i) => !series[i].dash && each.some((value) => value != null));
    place.hidden = !hasAny;
    nothing.hidden = hasAny;
    if (!hasAny) return;
    place.setAttribute("aria-label", `${title}. ${summary(xs, values)}`);
    if (plot) plot.setData(data);
    else redraw();
  }
  function summary(xs, values) {
    return series.map(({ name }, i) => {
      const known = values[i].filter((value) => value != null);
      return known.length ? `${name}: now ${shown(known.at(-1))}, highest ${shown(Math.max(...known))}` : `${name}: nothing`;
    }).join("; ");
  }
  return { element, update };
}

/** The time axis: hours and minutes, or days if it spans more than two. */
function times(u, splits) {
  const isLong = u.scales.x.max - u.scales.x.min > 2 * 86_400;
  const format = isLong ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
  return splits.map((each) => new Date(each * 1000).toLocaleString("en-GB", format));
}

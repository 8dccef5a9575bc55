// A worker's measured step costs.

import { h, svg } from "../dom.js";
import { duration, rate, short, words } from "../format.js";
import { facts } from "./pieces.js";

const isPoints = (value) => Array.isArray(value) && value.length > 1 && value.every((each) => Array.isArray(each) && each.length === 2);

/** `costs`: figures, or curves as points of tokens and milliseconds. */
export function curve(costs) {
  const curves = Object.entries(costs).filter(([, value]) => isPoints(value));
  const figures = Object.entries(costs).filter(([, value]) => typeof value === "number");
  return h("div", { class: "costs" }, ...curves.map(([name, points]) => line(name, points)),
    figures.length ? facts(figures.map(([name, value]) => [words(name.replace(/_ms$/, "")), name.endsWith("_ms") ? duration(value) : rate(value)])) : null);
}

function line(name, points) {
  const [width, height] = [100, 40];
  const right = Math.max(...points.map(([x]) => x), 1);
  const top = Math.max(...points.map(([, y]) => y), 1e-9);
  const drawn = points.map(([x, y]) => `${(width * x) / right},${height - (height * y) / top}`).join(" ");
  return h("figure", { class: "plot" },
    h("figcaption", { class: "row-head" }, h("span", {}, words(name)), h("span", { class: "muted" }, `up to ${duration(top)} at ${short(right)} tokens`)),
    svg("svg", { class: "curve-line", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("polyline", { points: drawn })));
}

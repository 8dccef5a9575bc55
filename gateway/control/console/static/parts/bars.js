// Stacked bars by day as SVG. Each has a table row for screen readers.

import { h, svg } from "../dom.js";

const HEIGHT = 140;

/** `series`: a list of `{name, kind, values}`, with one value per label. */
export function bars({ title, labels, series, shown, unit }) {
  const totals = labels.map((_, i) => series.reduce((all, { values }) => all + values[i], 0));
  const top = Math.max(1, ...totals);
  const step = 100 / labels.length;
  const drawn = labels.flatMap((label, i) => {
    let y = HEIGHT;
    return series.map(({ name, kind, values }) => {
      const height = (HEIGHT * values[i]) / top;
      y -= height;
      const bar = svg("rect", { class: kind, x: `${i * step + step * 0.12}%`, y, width: `${step * 0.76}%`, height });
      bar.append(svg("title", {}, `${label}, ${name}: ${shown(values[i])} ${unit}`));
      return bar;
    });
  });
  const plot = svg("svg", { class: "bars", height: HEIGHT, width: "100%", "aria-hidden": "true" }, ...drawn);
  const rows = labels.map((label, i) => [label, totals[i], i]).filter(([, total]) => total > 0);
  return h("figure", { class: "plot" },
    h("figcaption", { class: "row-head" }, h("span", { class: "plot-title" }, title),
      h("span", { class: "legend" }, ...series.map(({ name, kind }) => h("span", {}, h("span", { class: `dot ${kind}` }), name)))),
    plot,
    h("div", { class: "bar-axis", "aria-hidden": "true" }, h("span", {}, labels[0]), h("span", {}, `highest day: ${shown(top)} ${unit}`), h("span", {}, labels.at(-1))),
    h("details", {}, h("summary", {}, "As a table"),
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Day"), ...series.map(({ name }) => h("th", { scope: "col", class: "number" }, name)))),
        h("tbody", {}, ...rows.map(([label, , i]) => h("tr", {}, h("td", {}, label), ...series.map(({ values }) => h("td", { class: "number" }, shown(values[i])))))))));
}

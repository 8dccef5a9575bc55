// A table that keeps its rows across updates, and scrolls sideways in its own region if it is too wide.

import { fill, h, keepingFocus, keyed } from "../dom.js";

const watched = new ResizeObserver((entries) => entries.forEach(({ target }) => reachable(target)));

/** Makes a region reachable by keyboard only if it scrolls. */
function reachable(region) {
  if (region.scrollWidth > region.clientWidth + 1) region.tabIndex = 0;
  else region.removeAttribute("tabindex");
}

/**
 * `columns`: a list of `{name, cell(item), class?, hidden?}`; a hidden name is for screen readers only. `key(item)`
 * identifies a row. `empty`: a sentence, or a function that creates the element. Returns `{element, update(items)}`.
 */
export function table({ caption, columns, key, empty = "Nothing is here." }) {
  const body = h("tbody");
  const head = columns.map(({ name, class: kind, hidden }) =>
    h("th", { scope: "col", class: kind }, hidden ? h("span", { class: "hidden-label" }, name) : name),
  );
  const content = h("table", {}, h("caption", { class: "hidden-label" }, caption), h("thead", {}, h("tr", {}, ...head)), body);
  const region = h("div", { class: "scroll", role: "region", "aria-label": caption }, content);
  const nothing = typeof empty === "string" ? h("p", { class: "empty" }, empty) : empty();
  const element = h("div", { class: "table" }, region, nothing);
  watched.observe(region);

  const make = () => h("tr", {}, ...columns.map(({ class: kind }) => h("td", { class: kind })));
  const drawn = new WeakMap();
  function draw(row, item) {
    const state = JSON.stringify(item);
    if (drawn.get(row) === state && !columns.some((column) => column.moves)) return;
    drawn.set(row, state);
    keepingFocus(row, () => columns.forEach(({ cell }, i) => fill(row.cells[i], cell(item))));
  }
  function update(items) {
    keyed(body, items, key, make, draw);
    region.hidden = items.length === 0;
    nothing.hidden = items.length > 0;
    reachable(region);
  }
  nothing.hidden = true;
  return { element, update };
}

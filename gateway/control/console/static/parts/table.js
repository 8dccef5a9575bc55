// A table whose rows are kept from refresh to refresh. It scrolls sideways in its own region where it is too wide.

import { fill, h, keepingFocus, keyed } from "../dom.js";

const watched = new ResizeObserver((entries) => entries.forEach(({ target }) => reachable(target)));

/** A region that scrolls has to be reached by the keyboard; one that does not is no stop. */
function reachable(region) {
  if (region.scrollWidth > region.clientWidth + 1) region.tabIndex = 0;
  else region.removeAttribute("tabindex");
}

/**
 * `columns`: `{name, cell(item), class?, hidden?}` each; a hidden name is read aloud alone. `key(item)`: what a row is
 * known by. `empty`: a sentence, or a function that makes the element. Returns `{element, update(items)}`.
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

// A table that keeps its rows across updates. It scrolls sideways in its own region if it is too wide; on phones each row
// is a card with the column's name in front of each value. The roles hold in both layouts.

import { fill, h, keepingFocus, keyed } from "../dom.js";
import { NOTHING } from "../format.js";

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
  const body = h("tbody", { role: "rowgroup" });
  const head = columns.map(({ name, class: kind, hidden }) =>
    h("th", { scope: "col", role: "columnheader", class: kind }, hidden ? h("span", { class: "hidden-label" }, name) : name),
  );
  const content = h("table", { role: "table" }, h("caption", { class: "hidden-label" }, caption), h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...head)), body);
  const region = h("div", { class: "scroll", role: "region", "aria-label": caption }, content);
  const nothing = typeof empty === "string" ? h("p", { class: "empty" }, empty) : empty();
  const element = h("div", { class: "table" }, region, nothing);
  watched.observe(region);

  const make = () => h("tr", { role: "row" }, ...columns.map(({ name, class: kind, hidden }) => h("td", { role: "cell", class: kind, "data-label": hidden ? null : name })));
  const drawn = new WeakMap();
  function draw(row, item) {
    const state = JSON.stringify(item);
    if (drawn.get(row) === state && !columns.some((column) => column.moves)) return;
    drawn.set(row, state);
    keepingFocus(row, () => columns.forEach(({ cell }, i) => {
      fill(row.cells[i], cell(item));
      row.cells[i].classList.toggle("nothing", row.cells[i].textContent === NOTHING);
    }));
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

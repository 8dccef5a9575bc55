// A bar of filters whose values are in the URL.

import { h } from "../dom.js";
import { field } from "./dialog.js";

/**
 * `wanted`: fields as `field` takes them, `given`: the URL's fields, `path`: the view's. Returns `{element, chosen()}`;
 * `chosen()` are the values that are set.
 */
export function filterBar(wanted, given, path, label) {
  const filters = wanted.map((each) => field({ ...each, value: value(each, given.get(each.name)) }));
  const chosen = () => Object.fromEntries(filters.map(({ name, read }) => [name, read()]).filter(([, each]) => each));
  const go = () => (location.hash = `#/${path}${Object.keys(chosen()).length ? `?${new URLSearchParams(chosen())}` : ""}`);
  const element = h("form", { class: "filters", role: "search", "aria-label": label, onsubmit: (event) => (event.preventDefault(), go()), onchange: go },
    ...filters.map((each) => each.element), h("button", { type: "submit", class: "quiet" }, "Filter"));
  return { element, chosen };
}

const value = ({ type }, text) => (type === "datetime-local" && text ? Number(text) : text);

// The audit log, newest first: filters in the URL, and the same changes as a file.

import { ROOT, get, query } from "../api.js";
import { h, named } from "../dom.js";
import { dated } from "../format.js";
import { filterBar } from "../parts/filters.js";
import { isMoney, money } from "../parts/money.js";
import { button, loading, pageHead } from "../parts/pieces.js";
import { table } from "../parts/table.js";

const PAGE = 50;
const FILTERS = [
  { name: "actor", label: "Who" },
  { name: "action", label: "What" },
  { name: "target", label: "Of" },
  { name: "from", label: "From", type: "datetime-local", step: 1 },
  { name: "to", label: "To", type: "datetime-local", step: 1 },
];

export async function audit(root, { fields, signal }) {
  let found = [];
  let last = null;
  const { element: bar, chosen } = filterBar(FILTERS, fields, "audit", "Filter changes");
  const wanted = chosen();
  const shown = table({
    caption: "Changes",
    key: (entry) => entry.id,
    empty: Object.keys(wanted).length ? "No change matches these filters." : "There are no changes yet.",
    columns: [
      { name: "When", class: "when", cell: (entry) => dated(entry.at) },
      { name: "Who", cell: (entry) => [named(entry.actor), h("div", { class: "muted id" }, entry.address)] },
      { name: "What", class: "id", cell: (entry) => entry.action },
      { name: "Of", cell: (entry) => named(entry.target) },
      { name: "Changes", class: "wide", cell: (entry) => changesOf(entry.changes) },
    ],
  });
  const more = button("Show older", () => read());
  const wait = loading();
  const file = (format, label) => h("a", { class: "button", href: `${ROOT}/admin/v1/audit${query({ ...wanted, format })}`, download: `audit.${format}` }, label);
  root.append(pageHead("Audit", "All changes, newest first.", file("csv", "As CSV"), file("jsonl", "As JSON lines"), button("Refresh", () => read(true))),
    bar, h("div", { class: "card flush" }, wait, shown.element, h("div", { class: "pages" }, more)));

  async function read(anew = false) {
    const page = await get("/audit", { ...wanted, limit: PAGE, after: anew ? null : last }, signal);
    found = anew ? page.data : [...found, ...page.data];
    last = page.last_id;
    wait.remove();
    shown.update(found);
    more.hidden = !page.has_more;
  }
  await read(true);
}

/** Each changed field with its old and new value. */
function changesOf({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const told = names.flatMap((name) => lines(name, before?.[name], after?.[name]));
  if (!told.length) return h("span", { class: "muted" }, "–");
  if (told.length <= 4) return h("ul", { class: "changes" }, ...told);
  return h("details", {}, h("summary", {}, before ? `${told.length} fields` : `created with ${told.length} fields`), h("ul", { class: "changes" }, ...told));
}

const isPlain = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function lines(name, before, after) {
  if (JSON.stringify(before) === JSON.stringify(after)) return [];
  if (isPlain(before ?? after) && isPlain(after ?? before)) {
    const inner = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
    return inner.flatMap((each) => lines(`${name}.${each}`, before?.[each], after?.[each]));
  }
  const told = (value) => (typeof value === "number" && isMoney(name.split(".").at(-1)) ? money(value) : JSON.stringify(value));
  const text = (value) => (value === undefined || value === null ? "none" : typeof value === "string" ? value : told(value));
  return [h("li", {}, h("code", {}, name), ": ", before === undefined ? null : [h("del", {}, named(text(before))), " → "], named(text(after)))];
}

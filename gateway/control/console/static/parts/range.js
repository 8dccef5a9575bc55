// The period that charts show: one that ends now, or free times.

import { h } from "../dom.js";
import { ApiError } from "../api.js";
import { duration, shortMoment } from "../format.js";
import { field, formDialog } from "./dialog.js";
import { button, segmented } from "./pieces.js";

const HOUR = 3600;
const SPANS = [["15m", "15 min", HOUR / 4], ["1h", "1 h", HOUR], ["6h", "6 h", 6 * HOUR], ["day", "Day", 24 * HOUR], ["week", "Week", 7 * 24 * HOUR], ["month", "Month", 30 * 24 * HOUR]];

/** The period of a URL's fields: `{name, seconds, from, to}` in Unix seconds; `from` and `to` are null if it ends now. */
export function rangeOf(fields) {
  const [from, to] = ["from", "to"].map((name) => Number(fields.get(name)));
  if (from > 0 && to > from) return { name: "free", from, to, seconds: to - from };
  const [name, , seconds] = SPANS.find(([each]) => each === fields.get("span")) ?? SPANS[0];
  return { name, from: null, to: null, seconds };
}

/** A period in words, for a title. */
export const inWords = ({ name, from, to, seconds }) => {
  if (from !== null) return `${shortMoment(from)} – ${shortMoment(to)}`;
  return `in the last ${seconds > 6 * HOUR ? name : duration(1000 * seconds)}`;
};

/** The fields of a URL for a period. */
const fieldsOf = ({ name, from, to }) => new URLSearchParams(from === null ? (name === SPANS[0][0] ? {} : { span: name }) : { from, to });

/** Start and end of a period in Unix seconds. */
export function edges({ from, to, seconds }) {
  const end = to ?? Date.now() / 1000;
  return [from ?? end - seconds, end];
}

/** The API's fields for a period. */
export const rangeQuery = (range) => ({ from: edges(range)[0], until: range.to });

/** Milliseconds between two reads: as often as there is a new step. */
export const readEvery = ({ seconds, to }) => (to !== null || seconds > 24 * HOUR ? 300_000 : seconds > HOUR ? 60_000 : 10_000);

/** Choices of a period; `onchange(fields)` gets the fields of a URL. */
export function rangePicker(range, onchange) {
  const spans = segmented("Time shown", SPANS, range.name, (name) => onchange(fieldsOf({ name, from: null })));
  const label = range.name === "free" ? inWords(range) : "Other…";
  const choose = () => formDialog("Time shown", {
    intro: "At most 31 days. Steps are as fine as they are kept: 10 seconds for a day, 5 minutes for a month.",
    action: "Show",
    layout: "two",
    fields: ["from", "to"].map((name, i) => field({ name, label: ["From", "To"][i], type: "datetime-local", step: 1, value: edges(range)[i], required: true })),
    send({ from, to }) {
      if (!(to > from)) throw new ApiError(400, { message: "This must be after the start.", param: "to" });
      onchange(fieldsOf({ from, to }));
    },
  });
  return h("div", { class: "range" }, spans, button(label, choose, { "aria-pressed": String(range.name === "free") }));
}

/** The fields of a URL for a stretch of a chart, of ten seconds at least. */
export function zoomed(from, to) {
  const [start, end] = [Math.floor(from), Math.ceil(to)];
  return fieldsOf({ from: start, to: Math.max(end, start + 10) });
}

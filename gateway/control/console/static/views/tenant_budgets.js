// A tenant's usage against its limits, now and day by day.

import { getIfThere } from "../api.js";
import { fill, h } from "../dom.js";
import { count, rate } from "../format.js";
import { every } from "../live.js";
import { chart } from "../parts/chart.js";
import { card } from "../parts/pieces.js";
import { edges, rangeOf, rangePicker, rangeQuery } from "../parts/range.js";
import { limitList, usageCard } from "../parts/usage.js";

const EVERY_MS = 3000;
const HISTORY_EVERY_MS = 15_000;

export async function budgets(place, state) {
  const now = h("div");
  const work = workOf(state);
  const usage = usageCard(`${state.path}/usage`, state.signal);
  place.append(
    card("Now", h("p", { class: "legend" }, h("span", {}, h("span", { class: "dot used" }), "used"), h("span", {}, h("span", { class: "dot reserved" }), "reserved by requests that run")), now),
    work.element,
    usage.element,
  );
  await Promise.all([
    usage.read(),
    every(HISTORY_EVERY_MS, state.signal, work.read),
    every(EVERY_MS, state.signal, async () => {
      const quota = await getIfThere(`${state.path}/quota`, {}, state.signal);
      fill(now, limitList(quota?.limits ?? {}));
    }),
  ]);
}

/** Its rate, running and waiting requests, over a period. */
function workOf({ id, signal }) {
  let range = rangeOf(new URLSearchParams());
  const pace = chart({ title: "Output tokens/s", series: [{ name: "tokens/s", colour: "accent", area: true }], shown: rate, signal });
  const requests = chart({ title: "Requests", series: [{ name: "running", colour: "accent", area: true }, { name: "waiting", colour: "info" }], shown: rate, signal });
  const refused = chart({ title: "Refused per interval", series: [{ name: "refused", colour: "bad", area: true }], shown: count, isWhole: true, signal });
  const picker = h("div");
  const choose = (fields) => {
    range = rangeOf(fields);
    drawPicker();
    read();
  };
  const drawPicker = () => fill(picker, rangePicker(range, choose));
  drawPicker();
  const element = h("section", { class: "card work", hidden: true }, h("div", { class: "row-head" }, h("h2", {}, "Work"), picker), h("div", { class: "thirds" }, pace.element, requests.element, refused.element));
  async function read() {
    const found = await getIfThere("/history", { ...rangeQuery(range), tenant: id }, signal);
    element.hidden = found === null;
    const points = (found?.points ?? []).filter(({ tenant }) => tenant);
    const xs = points.map(({ at }) => at);
    const of = (field) => points.map(({ tenant }) => tenant[field] ?? null);
    const [from, to] = edges(range);
    const axis = { from, to, step: found?.step_s };
    pace.update(xs, [of("tokens_per_s")], axis);
    requests.update(xs, [of("running"), of("queued")], axis);
    refused.update(xs, [of("refused")], axis);
  }
  return { element, read };
}

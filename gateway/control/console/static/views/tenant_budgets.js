// A tenant's usage against its limits, now and day by day.

import { getIfThere, get } from "../api.js";
import { fill, h, named } from "../dom.js";
import { ago, amount, count, duration, rate, words } from "../format.js";
import { every } from "../live.js";
import { bars } from "../parts/bars.js";
import { chart } from "../parts/chart.js";
import { badge, card, isCounted, laneTag, limitMeter, segmented } from "../parts/pieces.js";
import { edges, rangeOf, rangePicker, rangeQuery } from "../parts/range.js";
import { table } from "../parts/table.js";
import { money } from "../parts/money.js";

const EVERY_MS = 3000;
const HISTORY_EVERY_MS = 15_000;
const DAY_MS = 86_400_000;

export async function budgets(place, state) {
  const now = h("div");
  const work = workOf(state);
  const past = h("div", { class: "past" });
  const spans = segmented("Days", [["7", "7 days"], ["30", "30 days"], ["90", "90 days"]], "30", (days) => readPast(Number(days)));
  place.append(
    card("Now", h("p", { class: "legend" }, h("span", {}, h("span", { class: "dot used" }), "used"), h("span", {}, h("span", { class: "dot reserved" }), "reserved by requests that run")), now),
    work.element,
    h("section", { class: "card" }, h("div", { class: "row-head" }, h("h2", {}, "Usage"), spans), past),
  );

  async function readPast(days) {
    const from = new Date(Date.now() - (days - 1) * DAY_MS).toISOString().slice(0, 10);
    const path = `${state.path}/usage`;
    const [daily, grouped] = await Promise.all([
      get(path, { from, group_by: "day,lane" }, state.signal),
      get(path, { from, group_by: "lane,model,key" }, state.signal),
    ]);
    fill(past, byDay(daily.data, from, days), usageTable(grouped));
  }
  await Promise.all([
    readPast(30),
    every(HISTORY_EVERY_MS, state.signal, work.read),
    every(EVERY_MS, state.signal, async () => {
      const quota = await getIfThere(`${state.path}/quota`, {}, state.signal);
      fill(now, standing(quota?.limits ?? {}));
    }),
  ]);
}

/** Its rate, running and waiting requests, over a period. */
function workOf({ id, signal }) {
  let range = rangeOf(new URLSearchParams());
  const pace = chart({ title: "Output tokens/s", series: [{ name: "tokens/s", colour: "accent", area: true }], shown: rate, signal });
  const requests = chart({ title: "Requests", series: [{ name: "running", colour: "accent", area: true }, { name: "waiting", colour: "info" }], shown: rate, signal });
  const refused = chart({ title: "Refused in each step", series: [{ name: "refused", colour: "bad", area: true }], shown: count, signal });
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

function standing(limits) {
  const entries = Object.entries(limits);
  if (!entries.length) return h("p", { class: "empty" }, "No limits are set: this tenant may use all capacity.");
  return h("ul", { class: "limits" }, ...entries.map(([name, limit]) => h("li", {},
    h("div", { class: "limit-name" }, h("span", {}, words(name)),
      limit.scope !== "tenant" && badge(words(limit.scope), "info"),
      limit.shadow && badge("only counted", "warn"),
      limit.resets_at && isCounted(name) && (limit.used || limit.reserved) ? h("small", { class: "muted" }, "empty ", ago(limit.resets_at)) : null),
    isCounted(name) ? limitMeter(name, limit) : h("span", { class: "muted" }, `at most ${amount(limit.limit)} tokens`))));
}

const tokens = (line) => line.prompt_tokens + line.output_tokens;

function byDay(lines, from, days) {
  const dates = Array.from({ length: days }, (_, i) => new Date(new Date(from).getTime() + i * DAY_MS).toISOString().slice(0, 10));
  const of = (day, lane) => lines.filter((line) => line.day === day && line.lane === lane).reduce((all, line) => all + tokens(line), 0);
  const total = lines.reduce((all, line) => all + tokens(line), 0);
  if (!total) return h("p", { class: "empty" }, "No usage in this period.");
  return bars({
    title: "Tokens by day",
    labels: dates,
    series: [
      { name: "latency", kind: "is-latency", values: dates.map((day) => of(day, "latency")) },
      { name: "throughput", kind: "is-throughput", values: dates.map((day) => of(day, "throughput")) },
    ],
    shown: amount,
    unit: "tokens",
  });
}

function usageTable({ data, total }) {
  const columns = [
    { name: "Lane", cell: (line) => (line.lane ? laneTag(line.lane) : h("strong", {}, "All")) },
    { name: "Model", cell: (line) => (line.model ? named(line.model) : "") },
    { name: "Key", class: "id", cell: (line) => line.key ?? "" },
    { name: "Requests", class: "number", cell: (line) => count(line.requests) },
    { name: "Prompt tokens", class: "number", cell: (line) => amount(line.prompt_tokens) },
    { name: "Cached", class: "number", cell: (line) => amount(line.cached_tokens) },
    { name: "Output tokens", class: "number", cell: (line) => amount(line.output_tokens) },
    ...(!total.cost ? [] : [{ name: "Spend", class: "number", cell: (line) => money(line.cost) }]),
    ...(!total.gpu_seconds ? [] : [{ name: "Steps' time", class: "number", cell: (line) => duration(1000 * line.gpu_seconds) }]),
  ];
  const shown = table({ caption: "Usage by lane, model and key", columns, key: (line) => `${line.lane}/${line.model}/${line.key}`, empty: "No request of this tenant was settled in this period." });
  shown.update(data.length ? [...data, total] : []);
  return shown.element;
}

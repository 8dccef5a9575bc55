// A tenant's limits with their use, and its usage day by day and by lane, model and key.

import { get } from "../api.js";
import { fill, h, named } from "../dom.js";
import { ago, amount, count, duration, words } from "../format.js";
import { bars } from "./bars.js";
import { money } from "./money.js";
import { badge, isCounted, laneTag, limitMeter, segmented } from "./pieces.js";
import { table } from "./table.js";

const DAY_MS = 86_400_000;

/** A card of the usage at a path of the API; `read(days)` reads it. */
export function usageCard(path, signal) {
  const past = h("div", { class: "past" });
  const spans = segmented("Days", [["7", "7 days"], ["30", "30 days"], ["90", "90 days"]], "30", (days) => read(Number(days)));
  const element = h("section", { class: "card" }, h("div", { class: "row-head" }, h("h2", {}, "Usage"), spans), past);
  async function read(days = 30) {
    const from = new Date(Date.now() - (days - 1) * DAY_MS).toISOString().slice(0, 10);
    const [daily, grouped] = await Promise.all([
      get(path, { from, group_by: "day,lane" }, signal),
      get(path, { from, group_by: "lane,model,key" }, signal),
    ]);
    fill(past, byDay(daily.data, from, days), usageTable(grouped));
  }
  return { element, read };
}

/** Limits with their use, as `/quota` and `/limits` have them. */
export function limitList(limits) {
  const entries = Object.entries(limits);
  if (!entries.length) return h("p", { class: "empty" }, "No limits are set: this tenant may use all capacity.");
  return h("ul", { class: "limits" }, ...entries.map(([name, limit]) => h("li", {},
    h("div", { class: "limit-name" }, h("span", {}, words(name)),
      limit.scope !== "tenant" && badge(words(limit.scope), "info"),
      limit.shadow && badge("only counted", "warn"),
      limit.resets_at && isCounted(name) && (limit.used || limit.reserved) ? h("small", { class: "muted" }, "resets ", ago(limit.resets_at)) : null),
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
    ...(!total.gpu_seconds ? [] : [{ name: "Compute time", class: "number", cell: (line) => duration(1000 * line.gpu_seconds) }]),
  ];
  const shown = table({ caption: "Usage by lane, model and key", columns, key: (line) => `${line.lane}/${line.model}/${line.key}`, empty: "No request of this tenant was settled in this period." });
  shown.update(data.length ? [...data, total] : []);
  return shown.element;
}

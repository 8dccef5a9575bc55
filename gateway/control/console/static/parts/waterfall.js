// A request's phases as bars over time. The figures next to the bars are the API's time account, whose parts add up
// to the total; the bars show the approximate times.

import { h } from "../dom.js";
import { duration } from "../format.js";

const PARTS = ["Queue", "Prefill", "Decode", "Preempted", "Paused", "Network"];

/** Phases of a request: `{name, kind, from, until, note?}` in milliseconds from its arrival. */
function stretches(request) {
  const total = totalOf(request);
  const { queue_ms: queue, ttft_ms: first } = request;
  const isBegun = queue != null;
  const found = [{ name: "Queue", kind: "queued", from: 0, until: queue ?? total }];
  if (isBegun) found.push({ name: "Prefill", kind: "prefill", from: queue, until: first ?? total });
  if (first != null) found.push({ name: "Decode", kind: "decode", from: first, until: total });
  for (const each of request.preemptions ?? []) {
    const stall = each.stall_ms ?? Math.max(0, total - each.at_ms);
    found.push({ name: "Preempted", kind: "preempted", from: each.at_ms, until: each.at_ms + stall, note: each.mode });
  }
  for (const [from, until] of pauses(request, total)) found.push({ name: "Paused", kind: "paused", from, until });
  return found.filter(({ from, until }) => until >= from);
}

/** Each pause from its start to the event that ended it. */
function pauses({ events = [] }, total) {
  return events.flatMap(({ kind, at_ms: at }, i) => {
    if (kind !== "paused") return [];
    return [[at, events.slice(i + 1).find((each) => ["resumed", "ended"].includes(each.kind))?.at_ms ?? total]];
  });
}

const totalOf = (request) => Math.max(1, request.total_ms ?? 0, ...(request.events ?? []).map(({ at_ms: at }) => at ?? 0), request.ttft_ms ?? 0, request.queue_ms ?? 0);

export function waterfall(request) {
  const total = totalOf(request);
  const parts = stretches(request);
  const spent = (name) => request.time?.[`${name.toLowerCase()}_ms`] ?? null;
  const shown = PARTS.filter((name) => spent(name) > 0 || (!request.time && parts.some((each) => each.name === name)));
  const rows = shown.map((name) => {
    const lane = h("div", { class: "water-lane" }, ...parts.filter((each) => each.name === name).map((each) => bar(each, total)));
    return h("div", { class: "water-row" }, h("span", { class: "water-name" }, name), lane, h("span", { class: "number" }, duration(spent(name))));
  });
  const sum = request.time && h("div", { class: "water-row" }, h("span", { class: "water-name" }, "Total"), h("span"), h("span", { class: "number" }, duration(request.time.total_ms)));
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", {}, duration(share * total)));
  const said = [...shown.map((name) => `${name} ${duration(spent(name))}`), request.time ? `total ${duration(request.time.total_ms)}` : null].filter(Boolean).join("; ");
  return h("div", { class: "waterfall", role: "img", "aria-label": `Where its time went: ${said}` }, ...rows, sum, h("div", { class: "water-row" }, h("span"), h("div", { class: "water-axis" }, ...marks), h("span")));
}

function bar({ name, kind, from, until, note }, total) {
  const made = h("i", { class: `in-${kind}`, title: `${name}${note ? ` (${note})` : ""}: ${duration(from)} to ${duration(until)}` });
  made.style.left = `${(100 * from) / total}%`;
  made.style.width = `${Math.max(0.3, (100 * (until - from)) / total)}%`;
  return made;
}

// A request's way as bars over time: what it waited for, prefill, decode, and each time that it was preempted.

import { h } from "../dom.js";
import { duration } from "../format.js";

/** Stretches of a request: `{name, kind, from, until, note?}` in milliseconds from its arrival. */
function stretches(request) {
  const total = totalOf(request);
  const { queue_ms: queue, ttft_ms: first } = request;
  const isBegun = queue != null;
  const found = [{ name: "Queue", kind: "queued", from: 0, until: queue ?? total }];
  if (isBegun) found.push({ name: "Prefill", kind: "prefill", from: queue, until: first ?? total });
  if (first != null) found.push({ name: "Decode", kind: "decode", from: first, until: total });
  for (const each of request.preemptions) {
    const stall = each.stall_ms ?? Math.max(0, total - each.at_ms);
    found.push({ name: "Preempted", kind: "preempted", from: each.at_ms, until: each.at_ms + stall, note: each.mode });
  }
  return found.filter(({ from, until }) => until >= from);
}

const totalOf = (request) => Math.max(1, request.total_ms ?? 0, ...(request.events ?? []).map(({ at_ms: at }) => at ?? 0), request.ttft_ms ?? 0, request.queue_ms ?? 0);

export function waterfall(request) {
  const total = totalOf(request);
  const parts = stretches(request);
  const rows = [...new Set(parts.map(({ name }) => name))].map((name) => {
    const own = parts.filter((each) => each.name === name);
    const sum = own.reduce((all, { from, until }) => all + until - from, 0);
    const lane = h("div", { class: "water-lane" }, ...own.map((each) => bar(each, total)));
    return h("div", { class: "water-row" }, h("span", { class: "water-name" }, name), lane, h("span", { class: "number" }, duration(sum)));
  });
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", {}, duration(share * total)));
  const said = parts.map(({ name, from, until }) => `${name} from ${duration(from)} to ${duration(until)}`).join("; ");
  return h("div", { class: "waterfall", role: "img", "aria-label": `In time: ${said}` }, ...rows, h("div", { class: "water-row" }, h("span"), h("div", { class: "water-axis" }, ...marks), h("span")));
}

function bar({ name, kind, from, until, note }, total) {
  const made = h("i", { class: `in-${kind}`, title: `${name}${note ? ` (${note})` : ""}: ${duration(from)} to ${duration(until)}` });
  made.style.left = `${(100 * from) / total}%`;
  made.style.width = `${Math.max(0.3, (100 * (until - from)) / total)}%`;
  return made;
}

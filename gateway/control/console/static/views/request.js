// One request: a waterfall, preemptions with their causes, waits, charges, and the reasons for its latency.

import { getIfThere, segment } from "../api.js";
import { fill, h, named } from "../dom.js";
import { amount, bytes, count, dated, duration, plural, rate, words } from "../format.js";
import { every } from "../live.js";
import { requestLink, tenantLink } from "../parts/links.js";
import { money } from "../parts/money.js";
import { card, facts, laneTag, link, pageHead, stateBadge } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { waterfall } from "../parts/waterfall.js";
import { traceUrl } from "../session.js";

const EVERY_MS = 1500;

export async function request(root, { id, signal }) {
  const head = h("div");
  const body = h("div", { class: "stack" });
  root.append(head, body);
  fill(head, pageHead("Request", named(id, "id")));
  let drawn = "";
  await every(EVERY_MS, signal, async () => {
    if (drawn && !isRunning(JSON.parse(drawn))) return; // it has ended and does not change any more
    const found = await getIfThere(`/requests/${segment(id)}`, {}, signal);
    if (found === null) return void (drawn || fill(body, gone()));
    const text = JSON.stringify(found);
    if (text === drawn) return;
    drawn = text;
    fill(head, pageHead("Request", h("span", { class: "tags" }, stateBadge(found.outcome ?? found.state), laneTag(found.lane), tenantLink(found.tenant), named(found.request_id ?? found.id, "id"))));
    fill(body, ...parts(found));
  });
}

const isRunning = ({ outcome, total_ms: total }) => outcome == null || total == null;
const gone = () => h("p", { class: "card empty" }, "There is no record of this request: it is too old, was not sampled, or this gateway keeps no records. ", link("#/requests", "All requests"));

function parts(found) {
  return [
    found.why && h("section", { class: "card why" }, h("h2", {}, "Why"), h("p", {}, found.why)),
    card("Where its time went", waterfall(found)),
    h("div", { class: "halves" }, card("Facts", facts(factsOf(found))), card("Charged", charges(found))),
    card("Preemptions", preemptionTable(found.preemptions), found.left_out ? h("p", { class: "muted" }, `${plural(found.left_out, "further event")} or preemptions are counted, not kept.`) : null),
    h("div", { class: "halves" }, card("Waits", waitTable(found.waits ?? [])), card("Events", eventTable(found.events ?? []))),
  ];
}

function factsOf(found) {
  const { steps, limit, message } = found;
  return [
    ["Arrived", dated(found.arrived_at)],
    ["Model", named(found.model)],
    ["Key", found.key ? named(found.key, "id") : undefined],
    ["Promised", found.class ?? undefined],
    ["Path", found.endpoint ? named(found.endpoint, "id") : undefined],
    ["Code", found.code ?? undefined],
    ["Error", message ? named(message) : undefined],
    ["Limit", limit ? words(limit) : undefined],
    ["Queue", duration(found.queue_ms)],
    ["First token", withTarget(found.ttft_ms, found.ttft_deadline_ms ?? found.ttft_target_ms)],
    ["In all", withTarget(found.total_ms, found.deadline_ms)],
    ["Preempted", found.preempted ? `${count(found.preempted)} ×` : undefined],
    ["Pace", found.tokens_per_s ? `${rate(found.tokens_per_s)} tokens/s` : undefined],
    ["Choices", found.choices > 1 ? count(found.choices) : undefined],
    ["Steps", steps ? `${count(steps.prefill_steps)} of prefill (${count(steps.prefill_tokens)} tokens), ${count(steps.decode_steps)} of decode` : undefined],
    ["Worker", found.workers?.length ? found.workers.map((each) => h("div", {}, named(each, "id"))) : undefined],
    ["Trace", found.trace_id ? traced(found.trace_id) : undefined],
  ];
}

const traced = (id) => (traceUrl(id) ? h("a", { href: traceUrl(id), target: "_blank", rel: "noreferrer" }, named(id, "id")) : named(id, "id"));
const withTarget = (value, target) => (target == null ? duration(value) : `${duration(value)} (target ${duration(target)})`);

function charges(found) {
  const { cost, gpu_seconds: steps, kv_block_seconds: held } = found.charges ?? {};
  return facts([
    ["Prompt", `${count(found.prompt_tokens)} tokens`],
    ["Of it cached", `${count(found.cached_tokens)} tokens`],
    ["Output", `${count(found.output_tokens)} tokens`],
    ["Cost", cost == null ? undefined : money(cost)],
    ["Its share of steps", steps ? duration(1000 * steps) : undefined],
    ["KV held", held ? `${amount(Math.round(held))} blocks × seconds` : undefined],
  ]);
}

function preemptionTable(preemptions) {
  const shown = table({
    caption: "Preemptions",
    key: (each) => `${each.at_ms}/${each.cause?.resource}`,
    empty: "It was never preempted.",
    columns: [
      { name: "After", class: "number", cell: (each) => duration(each.at_ms) },
      { name: "By", cell: (each) => [each.cause?.lane ? laneTag(each.cause.lane) : null, " ", each.cause?.tenant ? tenantLink(each.cause.tenant) : null, each.cause?.request ? h("div", {}, requestLink(each.cause.request)) : null] },
      { name: "For", cell: (each) => words(each.cause?.resource ?? "–") },
      { name: "Mode", cell: (each) => each.mode },
      { name: "Blocks", class: "number", cell: (each) => count(each.blocks) },
      { name: "Copied", class: "number", cell: (each) => bytes(each.bytes) },
      { name: "Copies, foreseen", class: "number", cell: (each) => duration(each.predicted_ms || null) },
      { name: "Away", class: "number", cell: (each) => duration(each.stall_ms) },
    ],
  });
  shown.update(preemptions);
  return shown.element;
}

function waitTable(waits) {
  const shown = table({
    caption: "Waits",
    key: (each) => each.reason,
    empty: "It did not wait.",
    columns: [
      { name: "For", class: "wide", cell: (each) => [words(each.reason), h("div", { class: "muted" }, each.words)] },
      { name: "In all", class: "number", cell: (each) => duration(each.ms) },
    ],
  });
  shown.update(waits);
  return shown.element;
}

/** A field of an event; the suffix of its name tells a duration. */
function told([name, value]) {
  if (name.endsWith("_ms")) return `${words(name.slice(0, -3))} ${duration(value)}`;
  return `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`;
}

function eventTable(events) {
  const shown = table({
    caption: "Events",
    key: (each) => JSON.stringify(each),
    empty: "No events are recorded.",
    columns: [
      { name: "After", class: "number", cell: (each) => duration(each.at_ms) },
      { name: "Event", cell: (each) => words(each.kind) },
      { name: "What", cell: (each) => named(Object.entries(each).filter(([name, value]) => !["at_ms", "kind"].includes(name) && value !== null).map(told).join(", ")) },
    ],
  });
  shown.update(events);
  return shown.element;
}


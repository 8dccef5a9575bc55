// Running and recent requests, with filters in the URL.

import { getIfThere } from "../api.js";
import { fill, h, named } from "../dom.js";
import { count, dated, duration, rate } from "../format.js";
import { every } from "../live.js";
import { filterBar } from "../parts/filters.js";
import { requestLink, tenantLink } from "../parts/links.js";
import { money } from "../parts/money.js";
import { button, laneTag, link, loading, missing, pageHead, stateBadge } from "../parts/pieces.js";
import { table } from "../parts/table.js";

const PAGE = 50;
const MOST_PAGES = 6;
const EVERY_MS = 3000;
const ANY = ["", "any"];
const FILTERS = [
  { name: "tenant", label: "Tenant" },
  { name: "lane", label: "Lane", type: "select", options: [ANY, ["latency", "latency"], ["throughput", "throughput"]] },
  { name: "state", label: "State", type: "select", options: [ANY, ...["queued", "running", "preempted", "paused", "lost", "ended"].map((each) => [each, each])] },
  { name: "outcome", label: "Outcome", type: "select", options: [ANY, ...["finished", "rejected", "cancelled", "expired", "unavailable", "failed"].map((each) => [each, each])] },
  { name: "slowest", label: "Order", type: "select", options: [["", "newest first"], ["total", "longest in all"], ["ttft", "longest to the first token"], ["queue", "longest in the queue"]] },
];

export async function requests(root, { fields, signal }) {
  const { element: bar, chosen } = filterBar(FILTERS, fields, "requests", "Filter requests");
  const shown = requestTable();
  const place = h("div", { class: "card flush" });
  const more = h("div", { class: "pages" });
  const wait = loading();
  let pages = 1;
  root.append(pageHead("Requests", "Running and recent requests. No text of a request is stored, only its waits and costs."), bar, place);
  fill(place, wait, shown.element, more);

  async function read() {
    const found = [];
    let page = null;
    for (let turn = 0; turn < pages; turn += 1) {
      page = await getIfThere("/requests", { ...chosen(), limit: PAGE, after: page?.last_id }, signal);
      if (page === null) return false;
      found.push(...page.data);
      if (!page.has_more) break;
    }
    wait.remove();
    shown.update(found);
    more.hidden = !page.has_more || pages >= MOST_PAGES;
    return true;
  }
  if (!(await read())) {
    fill(place);
    fill(bar);
    bar.hidden = true;
    root.append(missing("a record of requests"));
    place.remove();
    return;
  }
  fill(more, button("Show older", async () => {
    pages += 1;
    await read();
  }));
  await every(EVERY_MS, signal, read);
}

const requestTable = () => table({
  caption: "Requests",
  key: (each) => each.id,
  empty: "No request matches these filters. Records are kept of running and recent requests.",
  columns: [
    { name: "Request", class: "id", cell: (each) => requestLink(each.id, short(each.request_id ?? each.id, 14)) },
    { name: "Arrived", class: "when", cell: (each) => dated(each.arrived_at) },
    { name: "Tenant and key", cell: (each) => [tenantLink(each.tenant), each.key && h("div", {}, link(`#/tenants/${encodeURIComponent(each.tenant)}?tab=keys`, named(short(each.key, 10), "id muted")))] },
    { name: "Model and lane", cell: (each) => [each.model ? named(each.model) : "–", h("div", {}, laneTag(each.lane))] },
    { name: "State and worker", cell: state },
    { name: "Queue", class: "number", cell: (each) => duration(each.queue_ms) },
    { name: "First token", class: "number", cell: (each) => duration(each.ttft_ms) },
    { name: "Tokens/s", class: "number", cell: (each) => rate(each.tokens_per_s) },
    { name: "In all", class: "number", cell: (each) => duration(each.total_ms) },
    { name: "Tokens", class: "number", cell: (each) => h("span", { title: "prompt → output" }, `${count(each.prompt_tokens)} → ${count(each.output_tokens)}`) },
    { name: "Cost", class: "number", cell: (each) => money(each.cost) },
  ],
});

const state = ({ outcome, state: now, code, preemptions, worker }) => [
  stateBadge(outcome ?? now),
  code && h("div", { class: "id muted" }, code),
  preemptions > 0 && h("div", { class: "warn-text" }, `preempted ${count(preemptions)} ×`),
  worker && h("div", { class: "id muted", title: worker }, short(worker, 16)),
];

const short = (id, most) => (id.length > most ? `${id.slice(0, most - 1)}…` : id);

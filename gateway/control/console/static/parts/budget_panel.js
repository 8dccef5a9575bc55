// Who uses the installation and pays, and which limits are about to be used up.

import { getIfThere, list } from "../api.js";
import { h } from "../dom.js";
import { ago, count, rate, words } from "../format.js";
import { every } from "../live.js";
import { tenantLink } from "./links.js";
import { money } from "./money.js";
import { isCounted, limitMeter, link, shareOf } from "./pieces.js";
import { table } from "./table.js";

const MOST_ROWS = 6;
const MOST_TENANTS = 200;
const LIMITS_EVERY_MS = 20_000;
const SPEND_EVERY_MS = 600_000;
/** Limits that are used less than this are far from used up. */
const NEAR = 0.5;

export function budgetPanel(signal) {
  const spend = new Map();
  let latest = [];
  const payers = table({
    caption: "Tenants now, and their spend of this month",
    key: (each) => each.tenant,
    empty: "No tenant has requests now, or used any this month.",
    columns: [
      { name: "Tenant", cell: (each) => tenantLink(each.tenant) },
      { name: "Running", class: "number", cell: (each) => count(each.running) },
      { name: "Queued", class: "number", cell: (each) => count(each.queued) },
      { name: "Tokens/s", class: "number", cell: (each) => rate(each.tokens_per_s) },
      { name: "KV blocks", class: "number", cell: (each) => count(each.kv_blocks) },
      { name: "Spend this month", class: "number", cell: (each) => (each.cost == null ? "–" : money(each.cost)) },
    ],
  });
  const limits = table({
    caption: "Limits about to be used up",
    key: (each) => `${each.tenant}/${each.name}`,
    empty: "No limit is used to more than half.",
    columns: [
      { name: "Tenant", cell: (each) => tenantLink(each.tenant) },
      { name: "Limit", class: "wide", cell: (each) => [h("span", { class: "muted" }, words(each.name)), limitMeter(each.name, each.limit)] },
      { name: "Resets", moves: true, cell: (each) => ago(each.limit.resets_at) },
    ],
  });
  const note = h("p", { class: "muted", hidden: true }, `Of the first ${count(MOST_TENANTS)} tenants.`);
  const payersCard = h("section", { class: "card" }, h("div", { class: "row-head" }, h("h2", {}, "Who uses and who pays"), link("#/money", "All of the month")), payers.element);
  const limitsCard = h("section", { class: "card" }, h("div", { class: "row-head" }, h("h2", {}, "About to run out"), link("#/tenants", "All tenants")), limits.element, note);

  function draw() {
    const idle = [...spend.keys()].filter((tenant) => !latest.some((each) => each.tenant === tenant)).map((tenant) => ({ tenant, running: 0, queued: 0, tokens_per_s: 0, kv_blocks: 0 }));
    const rows = [...latest, ...idle].map((each) => ({ ...each, cost: spend.get(each.tenant) ?? null }));
    const order = (a, b) => (b.cost ?? 0) - (a.cost ?? 0) || b.running + b.queued - a.running - a.queued || b.kv_blocks - a.kv_blocks;
    payers.update(rows.sort(order).slice(0, MOST_ROWS));
  }
  every(SPEND_EVERY_MS, signal, async () => {
    const found = await getIfThere("/chargeback", { month: new Date().toISOString().slice(0, 7) }, signal);
    spend.clear();
    for (const line of found?.tenants ?? []) if (line.cost) spend.set(line.tenant, line.cost);
    draw();
  });
  every(LIMITS_EVERY_MS, signal, async () => {
    const { data, has_more: more } = await list("/tenants", { quota: true }, { most: MOST_TENANTS, signal });
    note.hidden = !more;
    const all = data.flatMap(({ id, quota }) => Object.entries(quota?.limits ?? {}).map(([name, limit]) => ({ tenant: id, name, limit })));
    const near = all.filter(({ name, limit }) => isCounted(name) && shareOf(limit) >= NEAR);
    limits.update(near.sort((a, b) => shareOf(b.limit) - shareOf(a.limit)).slice(0, MOST_ROWS));
  });
  return {
    elements: [payersCard, limitsCard],
    update({ tenants }) {
      latest = tenants ?? [];
      draw();
    },
  };
}

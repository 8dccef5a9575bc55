// Open batches, those due first at the top.

import { get } from "../api.js";
import { fill, h, named } from "../dom.js";
import { ago, amount, count, words } from "../format.js";
import { every } from "../live.js";
import { tenantLink } from "../parts/links.js";
import { badge, link, loading, meter, pageHead, stateBadge } from "../parts/pieces.js";
import { table } from "../parts/table.js";

const PAGE = 50;
const EVERY_MS = 3000;

export async function batches(root, { fields, signal }) {
  const tenant = fields.get("tenant");
  const shown = table({
    caption: "Open batches",
    key: (batch) => batch.id,
    empty: "No batch is open.",
    columns: [
      { name: "Batch", class: "id", cell: (batch) => batch.id },
      { name: "Tenant", cell: (batch) => tenantLink(batch.tenant) },
      { name: "State", cell: (batch) => stateBadge(batch.status) },
      { name: "Path", class: "id", cell: (batch) => batch.endpoint },
      { name: "Lines", class: "wide", cell: lines },
      { name: "Window ends", moves: true, cell: (batch) => (batch.window_ends_at * 1000 > Date.now() ? ago(batch.window_ends_at) : badge("over", "bad")) },
      { name: "Tokens left", class: "number", cell: (batch) => amount(batch.enqueued_tokens) },
      { name: "Run by", class: "id", cell: (batch) => (batch.gateway ? named(batch.gateway) : badge("nobody", "warn")) },
    ],
  });
  const pages = h("nav", { class: "pages", "aria-label": "Pages of batches" });
  const wait = loading();
  root.append(pageHead("Batches", tenant ? h("span", {}, "Open batches of ", tenantLink(tenant), ". ", link("#/batches", "All tenants")) : "Open batches, those due first at the top."),
    h("div", { class: "card flush" }, wait, shown.element, pages));
  await every(EVERY_MS, signal, async () => {
    const page = await get("/batches", { limit: PAGE, tenant, after: fields.get("after") }, signal);
    wait.remove();
    shown.update(page.data);
    const next = new URLSearchParams({ ...(tenant && { tenant }), after: page.last_id ?? "" });
    if (page.has_more && !pages.children.length) fill(pages, link(`#/batches?${next}`, "Next page"));
    pages.hidden = !pages.children.length;
  });
}

function lines(batch) {
  const label = `${count(batch.completed)} answered, ${count(batch.failed)} failed of ${count(batch.total)}`;
  return batch.status === "validating" ? words(batch.status) : meter(label, [["used", batch.completed], ["failed", batch.failed]], batch.total, false);
}

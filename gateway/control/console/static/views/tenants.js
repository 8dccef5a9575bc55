// All tenants, with their usage of their tightest limit.

import { change, get, segment } from "../api.js";
import { fill, h, named, toast } from "../dom.js";
import { every } from "../live.js";
import { formDialog } from "../parts/dialog.js";
import { tenantLink } from "../parts/links.js";
import { button, isCounted, laneTag, limitMeter, link, loading, pageHead, shareOf, stateBadge } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { tenantBody, tenantFields } from "../parts/tenant_form.js";
import { words } from "../format.js";
import { mayOwn } from "../session.js";

const PAGE = 20;
const EVERY_MS = 5000;
function tightest({ quota }) {
  if (!quota) return h("span", { class: "muted" }, "unknown");
  const [found] = Object.entries(quota.limits).filter(([name]) => isCounted(name)).sort((a, b) => shareOf(b[1]) - shareOf(a[1]));
  if (!found) return h("span", { class: "muted" }, "no limit");
  return h("div", { class: "tight" }, h("span", { class: "muted" }, words(found[0])), limitMeter(...found));
}

const columns = [
  { name: "Tenant", class: "wide", cell: (tenant) => [tenantLink(tenant.id), tenant.name && tenant.name !== tenant.id ? h("div", { class: "muted" }, named(tenant.name)) : null] },
  { name: "State", cell: (tenant) => stateBadge(tenant.state) },
  { name: "Lanes", cell: (tenant) => tenant.lanes.map(laneTag) },
  { name: "Weight", class: "number", cell: (tenant) => String(tenant.weight) },
  { name: "Parent", cell: (tenant) => tenantLink(tenant.parent) },
  { name: "Tightest limit", class: "wide", cell: tightest },
];

export async function tenants(root, { fields, signal }) {
  const make = () => formDialog("New tenant", {
    fields: tenantFields(),
    action: "Make tenant",
    layout: "two",
    async send(values) {
      const made = await change("POST", "/tenants", tenantBody(values, true));
      toast(`Tenant ${made.id} is made.`);
      location.hash = `#/tenants/${segment(made.id)}?tab=keys`;
      return made;
    },
  });
  const shown = table({
    caption: "Tenants",
    columns,
    key: (tenant) => tenant.id,
    empty: "There are no tenants yet. Create the first one, then a key for it.",
  });
  const pages = h("nav", { class: "pages", "aria-label": "Pages of tenants" });
  const wait = loading();
  root.append(
    pageHead("Tenants", "The tenants of this installation, their limits and their keys.", mayOwn() && button("New tenant", make, { kind: "primary" })),
    h("div", { class: "card flush" }, wait, shown.element, pages),
  );
  await every(EVERY_MS, signal, async () => {
    const after = fields.get("after");
    const page = await get("/tenants", { limit: PAGE, after, quota: true }, signal);
    wait.remove();
    shown.update(page.data);
    if (pages.dataset.last === String(page.last_id)) return;
    pages.dataset.last = page.last_id;
    fill(pages,
      after && link("#/tenants", "First page"),
      page.has_more && link(`#/tenants?after=${segment(page.last_id)}`, "Next page"));
    pages.hidden = !pages.children.length;
  });
}


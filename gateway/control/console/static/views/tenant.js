// One tenant: its budgets, keys, limits and settings, and a dry run of admission.

import { change, get, segment } from "../api.js";
import { fill, h, named, toast } from "../dom.js";
import { confirm } from "../parts/dialog.js";
import { tenantLink } from "../parts/links.js";
import { button, laneTag, pageHead, stateBadge } from "../parts/pieces.js";
import { mayChange, mayOwn } from "../session.js";
import { budgets } from "./tenant_budgets.js";
import { explain } from "./tenant_explain.js";
import { keys } from "./tenant_keys.js";
import { limits } from "./tenant_limits.js";
import { settings } from "./tenant_settings.js";

const TABS = [
  ["budgets", "Budgets and usage", budgets],
  ["keys", "Keys", keys],
  ["limits", "Limits", limits],
  ["settings", "Settings", settings],
  ["explain", "Explain", explain],
];

export async function tenant(root, { id, fields, signal }) {
  const path = `/tenants/${segment(id)}`;
  const state = { path, id, signal, tenant: await get(path, {}, signal) };
  const head = h("div");
  const place = h("div", { class: "tab" });
  const chosen = TABS.find(([name]) => name === fields.get("tab")) ?? TABS[0];
  const tabs = h("nav", { class: "tabs", "aria-label": "About this tenant" }, ...TABS.map(([name, label]) =>
    h("a", { href: `#/tenants/${segment(id)}?tab=${name}`, "aria-current": name === chosen[0] ? "page" : null }, label)));
  root.append(head, tabs, place);

  /** Reloads the tenant after a change and redraws its header. */
  state.refresh = async () => {
    state.tenant = await get(path, {}, signal);
    drawHead();
  };
  function drawHead() {
    const { tenant: now } = state;
    const note = h("span", { class: "tags" }, stateBadge(now.state), now.lanes.map(laneTag),
      now.name && now.name !== now.id ? named(now.name) : null,
      now.parent ? h("span", {}, "below ", tenantLink(now.parent)) : null);
    fill(head, pageHead(named(now.id), note, ...(mayChange() ? actions(state) : [])));
  }
  drawHead();
  await chosen[2](place, state);
}

function actions(state) {
  const { path, id } = state;
  const isActive = state.tenant.state === "active";
  async function turn(verb, done) {
    try {
      await change("POST", `${path}/${verb}`);
      await state.refresh();
      toast(`${id} ${done}.`);
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  async function suspend() {
    if (await confirm(`Suspend ${id}?`, "Its running streams are cancelled, and its requests are rejected until it is resumed.", "Suspend")) {
      await turn("suspend", "is suspended");
    }
  }
  async function remove() {
    if (!(await confirm(`Delete ${id}?`, "Its keys stop working at once. Its ledger is kept. This cannot be undone.", "Delete"))) return;
    try {
      await change("DELETE", path);
      toast(`${id} is deleted.`);
      location.hash = "#/tenants";
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  return [
    isActive ? button("Suspend", suspend) : button("Resume", () => turn("resume", "is served again")),
    mayOwn() && button("Delete", remove, { kind: "quiet danger" }),
  ];
}

// A tenant's keys: created, shown once, rotated, revoked.

import { change, list, segment } from "../api.js";
import { h, named, toast } from "../dom.js";
import { ago, moment } from "../format.js";
import { every } from "../live.js";
import { confirm, field, formDialog, openDialog } from "../parts/dialog.js";
import { button, copyButton, stateBadge } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { LANES, asList } from "../parts/tenant_form.js";
import { mayChange } from "../session.js";

const EVERY_MS = 10_000;

/** `active`, `revoked`, or `expired`. */
const stateOf = (key) => (key.state === "active" && key.expires_at != null && key.expires_at * 1000 <= Date.now() ? "expired" : key.state);

function scopesOf({ scopes }) {
  const set = Object.entries(scopes ?? {}).filter(([, value]) => value);
  return set.length ? set.map(([name, value]) => h("div", {}, h("span", { class: "muted" }, `${name}: `), named(value.join(", ")))) : h("span", { class: "muted" }, "all");
}

/** `replaced(old, made)` is called after a rotation. */
export async function keys(place, { path, signal, may = mayChange(), replaced = () => {} }) {
  const shown = table({
    caption: "Keys",
    key: (key) => key.id,
    empty: "This tenant has no keys: no requests can be sent for it.",
    columns: [
      { name: "Name", class: "wide", cell: (key) => named(key.name) },
      { name: "Id", class: "id", cell: (key) => key.id },
      { name: "State", cell: (key) => stateBadge(stateOf(key)) },
      { name: "May use", cell: scopesOf },
      { name: "Made", cell: (key) => moment(key.created_at) },
      { name: "Last used", moves: true, cell: (key) => (key.last_used_at == null ? "never" : ago(key.last_used_at)) },
      { name: "Expires", cell: (key) => (key.expires_at == null ? "never" : moment(key.expires_at)) },
      ...(may ? [{ name: "Actions", hidden: true, class: "actions", cell: (key) => (stateOf(key) === "active" ? [
        button("Rotate", () => rotate(key), { describes: key.name }),
        button("Revoke", () => revoke(key), { kind: "quiet danger", describes: key.name }),
      ] : null) }] : []),
    ],
  });
  const read = async () => shown.update((await list(`${path}/keys`, {}, { signal })).data);

  async function create() {
    const made = await formDialog("New key", {
      action: "Make key",
      fields: [
        field({ name: "name", label: "Name", required: true, hint: "Its purpose, such as the service that uses it." }),
        field({ name: "expires_at", label: "Expires", type: "datetime-local", hint: "Empty: never." }),
        field({ name: "scopes.lanes", label: "Lanes", type: "checkboxes", options: LANES, value: [] }),
        field({ name: "scopes.models", label: "Models", hint: "Names separated by commas; empty: all of the tenant's." }),
        field({ name: "scopes.endpoints", label: "Paths", hint: "For example /v1/chat/completions; empty: all." }),
        field({ name: "scopes.cidrs", label: "Networks", hint: "For example 10.0.0.0/8; empty: any." }),
      ],
      send: (values) => change("POST", `${path}/keys`, keyBody(values)),
    });
    if (made) await show(made);
  }
  async function rotate(key) {
    const made = await formDialog(`Rotate ${key.name}`, {
      intro: "A new key with the same limits and scopes replaces it.",
      action: "Rotate",
      fields: [field({ name: "overlap_s", label: "The old key keeps working for (seconds)", type: "number", value: "0" })],
      consequence: ({ overlap_s }) => (overlap_s ? null : `Requests with the old key of ${key.name} are refused within a second of this.`),
      send: ({ overlap_s }) => change("POST", `${path}/keys/${segment(key.id)}/rotate`, { overlap_s: overlap_s ?? 0 }),
    });
    if (!made) return;
    replaced(key, made);
    await show(made);
  }
  async function revoke(key) {
    if (!(await confirm(`Revoke ${key.name}?`, "The key stops working everywhere within a second. Running streams finish. This cannot be undone.", "Revoke"))) return;
    try {
      await change("DELETE", `${path}/keys/${segment(key.id)}`);
      toast(`Key ${key.id} is revoked.`);
      await read();
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  async function show(made) {
    await showOnce(made); // first: if the list cannot be read, the key must not be lost
    await read();
  }

  place.append(
    h("div", { class: "row-head" }, h("p", { class: "note" }, "A key is shown once, when it is created. Only its hash is stored."), may && button("New key", create, { kind: "primary" })),
    h("div", { class: "card flush" }, shown.element),
  );
  await every(EVERY_MS, signal, read);
}

function keyBody(values) {
  const lanes = values["scopes.lanes"];
  const scopes = {
    lanes: lanes.length ? lanes : null,
    models: asList(values["scopes.models"]),
    endpoints: asList(values["scopes.endpoints"]),
    cidrs: asList(values["scopes.cidrs"]),
  };
  return { name: values.name, expires_at: values.expires_at, scopes };
}

const showOnce = (made) => openDialog("Copy the key now", (close) => {
  const secret = h("input", { class: "secret", readonly: true, value: made.key, "aria-label": `Key ${made.name}`, onfocus: (event) => event.target.select() });
  return [
    h("p", {}, "It is shown only this once. Anyone who has it can spend this tenant's budgets."),
    h("div", { class: "copy" }, secret, copyButton(made.key)),
    h("div", { class: "buttons" }, button("I have kept it", () => close(true), { kind: "primary" })),
  ];
});

// Operators' tokens: created with a role, shown once, revoked.

import { change, getIfThere, segment } from "../api.js";
import { h, named, toast } from "../dom.js";
import { moment } from "../format.js";
import { every } from "../live.js";
import { confirm, field, formDialog, openDialog } from "../parts/dialog.js";
import { badge, button, copyButton, loading, missing, pageHead } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { mayOwn, signedIn } from "../session.js";

const EVERY_MS = 10_000;
const ROLES = [
  ["viewer", "viewer: reads"],
  ["operator", "operator: also changes tenants, limits and keys, suspends, drains workers"],
  ["owner", "owner: everything, makes and deletes tenants, names operators"],
];
const isOver = (token) => token.expires_at != null && token.expires_at * 1000 <= Date.now();

export async function access(root, { signal }) {
  const shown = table({
    caption: "Tokens",
    key: (token) => token.id,
    empty: "There are no tokens yet: all operators use the admin key.",
    columns: [
      { name: "Name", class: "wide", cell: (token) => named(token.name) },
      { name: "Id", class: "id", cell: (token) => token.id },
      { name: "Role", cell: (token) => badge(token.role, token.role === "owner" ? "warn" : token.role === "operator" ? "good" : "info") },
      { name: "Made", cell: (token) => moment(token.created_at) },
      { name: "By", cell: (token) => named(token.created_by) },
      { name: "Expires", cell: (token) => (token.expires_at == null ? "never" : isOver(token) ? badge("expired", "bad") : moment(token.expires_at)) },
      ...(mayOwn() ? [{ name: "Actions", hidden: true, class: "actions", cell: (token) => button("Revoke", () => revoke(token), { kind: "quiet danger", describes: token.name }) }] : []),
    ],
  });
  const place = h("div", { class: "card flush" }, loading());
  const { name, role } = signedIn();
  root.append(pageHead("Access", h("span", {}, "The operators of this installation and their roles. You are ", named(name), `, ${role}.`), mayOwn() && button("New token", create, { kind: "primary" })), place);

  async function read() {
    const page = await getIfThere("/tokens", { limit: 1000 }, signal);
    if (page === null) {
      place.replaceWith(missing("named operators"));
      return;
    }
    shown.update(page.data);
    if (!place.contains(shown.element)) place.replaceChildren(shown.element);
  }
  async function create() {
    const made = await formDialog("New token", {
      intro: "It signs in to this console and the admin API with this name and role. The audit log shows the name.",
      action: "Make token",
      fields: [
        field({ name: "name", label: "Name", required: true, hint: "Whose it is." }),
        field({ name: "role", label: "Role", type: "select", options: ROLES, value: "viewer" }),
        field({ name: "expires_at", label: "Expires", type: "datetime-local", hint: "Empty: never." }),
      ],
      send: (values) => change("POST", "/tokens", values),
    });
    if (!made) return;
    await read();
    await showOnce(made);
  }
  async function revoke(token) {
    if (!(await confirm(`Revoke ${token.name}?`, "The token stops working with the next call, and its sessions end.", "Revoke"))) return;
    try {
      await change("DELETE", `/tokens/${segment(token.id)}`);
      toast(`Token ${token.id} is revoked.`);
      await read();
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  await every(EVERY_MS, signal, read);
}

const showOnce = (made) => openDialog("Copy the token now", (close) => [
  h("p", {}, "It is shown only this once."),
  h("div", { class: "copy" }, h("input", { class: "secret", readonly: true, value: made.token, "aria-label": `Token ${made.name}`, onfocus: (event) => event.target.select() }), copyButton(made.token)),
  h("div", { class: "buttons" }, button("I have kept it", () => close(true), { kind: "primary" })),
]);

// The shell: session, routing and the frame around the views.

import { SignedOut } from "./api.js";
import { fill, h, named, setText, toast } from "./dom.js";
import * as live from "./live.js";
import { problem } from "./parts/pieces.js";
import { forget, mayOwn, recognise, signOut } from "./session.js";
import { access } from "./views/access.js";
import { audit } from "./views/audit.js";
import { batches } from "./views/batches.js";
import { kv } from "./views/kv.js";
import { models } from "./views/models.js";
import { moneyView } from "./views/money.js";
import { overview } from "./views/overview.js";
import { playground } from "./views/playground.js";
import { request } from "./views/request.js";
import { openSearch } from "./views/search.js";
import { requests } from "./views/requests.js";
import { showSignIn } from "./views/sign_in.js";
import { simulate } from "./views/simulate.js";
import { tenant } from "./views/tenant.js";
import { tenants } from "./views/tenants.js";
import { workers } from "./views/workers.js";

const VIEWS = [
  { path: "overview", name: "Overview", view: overview, group: "Now" },
  { path: "kv", name: "KV blocks", view: kv, group: "Now" },
  { path: "requests", name: "Requests", view: requests, one: request, group: "Now" },
  { path: "workers", name: "Workers", view: workers, group: "Now" },
  { path: "models", name: "Models", view: models, group: "Now" },
  { path: "batches", name: "Batches", view: batches, group: "Now" },
  { path: "tenants", name: "Tenants", view: tenants, one: tenant, group: "Manage" },
  { path: "money", name: "Money", view: moneyView, group: "Manage" },
  { path: "access", name: "Access", view: access, group: "Manage", needs: mayOwn },
  { path: "audit", name: "Audit", view: audit, group: "Manage" },
  { path: "playground", name: "Playground", view: playground, group: "Try" },
  { path: "simulate", name: "Simulate", view: simulate, group: "Try" },
];
const $ = (id) => document.getElementById(id);
let leaving = new AbortController();

/** The parts of the URL: view, item and query. */
function address() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [first = "", ...rest] = path.split("/");
  const found = VIEWS.find((each) => each.path === first && (each.needs?.() ?? true)) ?? VIEWS[0];
  return { found, id: rest.length ? decoded(rest.join("/")) : null, fields: new URLSearchParams(search) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function enter() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { found, id, fields } = address();
  const isOne = id !== null && id !== "" && found.one;
  document.title = `${isOne ? `${id.slice(0, 60)} · ` : ""}${found.name} · Fairlane`;
  mark(found);
  openMenu(false);
  const root = h("div", { class: `view view-${found.path}` });
  fill($("main"), root);
  try {
    await (isOne ? found.one : found.view)(root, { id, fields, signal });
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof SignedOut) return signedOut();
    root.append(problem(error));
  }
  if (signal.aborted) return;
  const heading = root.querySelector("h1");
  const focused = document.activeElement;
  if ([document.body, $("search")].includes(focused) || $("side").contains(focused)) heading?.focus();
}

function drawMenu() {
  const groups = Object.groupBy(VIEWS.filter((each) => each.needs?.() ?? true), (each) => each.group);
  fill($("side"), h("div", { class: "groups" }, ...Object.entries(groups).map(([name, views]) =>
    h("div", { class: "group" }, h("p", {}, name), h("ul", {}, ...views.map((each) =>
      h("li", {}, h("a", { href: `#/${each.path}`, "data-path": each.path }, each.name))))))));
}

function mark(found) {
  for (const link of $("side").querySelectorAll("a")) {
    if (link.dataset.path === found.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function openMenu(isOpen) {
  $("menu").setAttribute("aria-expanded", String(isOpen));
  $("side").classList.toggle("open", isOpen);
}

function stand(who) {
  for (const id of ["side", "menu", "account", "search"]) $(id).hidden = who === null;
  say("", false);
  if (who === null) return;
  fill($("who"), named(who.name), who.role && who.role !== who.name ? h("span", { class: "role" }, who.role) : null);
  drawMenu();
}

function say(text, isStale) {
  $("status").classList.toggle("stale", isStale);
  setText($("status"), text);
  $("status").hidden = text === "";
}

async function begin(who) {
  stand(who);
  await enter();
}

function signedOut(reason = "The session has ended.") {
  leaving.abort();
  live.stop();
  forget();
  stand(null);
  document.querySelectorAll("dialog").forEach((each) => each.close());
  document.title = "Sign in · Fairlane";
  return showSignIn($("main"), begin, reason);
}

async function start() {
  try {
    await begin(await recognise());
  } catch (error) {
    if (error instanceof SignedOut) return signedOut("");
    fill($("main"), problem(error));
    setTimeout(start, 3000);
  }
  return undefined;
}

live.watch(say, signedOut);
$("sign-out").addEventListener("click", async () => {
  try {
    await signOut();
    signedOut("You are signed out.");
  } catch (error) {
    toast(`Not signed out: ${error.message}`, "bad");
  }
});
$("menu").addEventListener("click", () => openMenu($("menu").getAttribute("aria-expanded") !== "true"));
$("skip").addEventListener("click", () => $("main").focus());
function search() {
  if ($("search").hidden || document.querySelector("dialog[open]")) return;
  openSearch(VIEWS.filter((each) => each.needs?.() ?? true));
}
$("search").addEventListener("click", search);
setText($("search-keys"), /mac|iphone|ipad/i.test(navigator.platform) ? "⌘ K" : "Ctrl K");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") openMenu(false);
  if (!(event.metaKey || event.ctrlKey) || event.key.toLowerCase() !== "k") return;
  event.preventDefault();
  search();
});
window.addEventListener("hashchange", () => $("side").hidden || enter());
start();

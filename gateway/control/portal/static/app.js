// The shell: sign-in, routing and the frame around the views.

import { SignedOut, segment } from "./console/api.js";
import { fill, h, named, setText } from "./console/dom.js";
import { watch } from "./console/live.js";
import { field, form } from "./console/parts/dialog.js";
import { pageHead, problem } from "./console/parts/pieces.js";
import { request } from "./console/views/request.js";
import { keys } from "./console/views/tenant_keys.js";
import { caller, replaceKey, signIn, signOut } from "./account.js";
import { playground } from "./playground.js";
import { requests } from "./requests.js";
import { usage } from "./usage.js";

const VIEWS = [
  { path: "usage", name: "Usage", view: usage },
  { path: "requests", name: "Requests", view: requests, one: request },
  { path: "keys", name: "Keys", view: ownKeys, needs: () => caller().may_manage_keys },
  { path: "playground", name: "Playground", view: playground },
];
const $ = (id) => document.getElementById(id);
const shown = () => VIEWS.filter((each) => each.needs?.() ?? true);
let leaving = new AbortController();

async function enter() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = shown().find((each) => each.path === path) ?? VIEWS[0];
  const id = rest.join("/");
  document.title = `${found.name} · Fairlane portal`;
  for (const link of $("side").querySelectorAll("a")) {
    if (link.getAttribute("href") === `#/${found.path}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  openMenu(false);
  const root = h("div", { class: "view" });
  fill($("main"), root);
  try {
    await (id && found.one ? found.one(root, { id: decoded(id), signal }) : found.view(root, { signal }));
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof SignedOut) return signedOut();
    root.append(problem(error));
  }
  if (!signal.aborted && document.activeElement === document.body) root.querySelector("h1")?.focus();
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function ownKeys(root, { signal }) {
  root.append(pageHead("Keys", "Keys that you make here may do what your key may, or less. They cannot manage keys."));
  const replaced = (old, made) => old.id === caller().key.id && replaceKey(made);
  await keys(root, { path: "", signal, may: true, replaced });
}

function stand(isSignedIn) {
  for (const id of ["side", "menu", "account"]) $(id).hidden = !isSignedIn;
  say("", false);
  if (!isSignedIn) return;
  const { tenant, tenant_name: name, key } = caller();
  fill($("who"), named(name || tenant), h("span", { class: "role" }, named(key.name || key.via || key.id)));
  fill($("side"), h("div", { class: "groups" }, h("ul", {}, ...shown().map((each) => h("li", {}, h("a", { href: `#/${segment(each.path)}` }, each.name))))));
}

function say(text, isStale) {
  $("status").classList.toggle("stale", isStale);
  setText($("status"), text);
  $("status").hidden = text === "";
}

function openMenu(isOpen) {
  $("menu").setAttribute("aria-expanded", String(isOpen));
  $("side").classList.toggle("open", isOpen);
}

function begin() {
  stand(true);
  return enter();
}

function signedOut(reason = "The key is no longer accepted.") {
  leaving.abort();
  signOut();
  stand(false);
  document.title = "Sign in · Fairlane portal";
  const key = field({ name: "key", label: "API key", type: "password", required: true, hint: "Kept for this tab alone. Your operator makes it; a token of your company's identity provider works too, if the operator accepts them." });
  const sheet = form({
    fields: [key],
    action: "Sign in",
    async send({ key: given }) {
      key.control.value = "";
      try {
        await signIn(given);
      } catch (error) {
        if (!(error instanceof SignedOut)) throw error;
        key.fail("This key is not accepted.");
        key.control.focus();
        return;
      }
      await begin();
    },
  });
  fill($("main"), h("section", { class: "card sign-in" }, h("h1", {}, "Your use of Fairlane"), h("p", { class: "note", role: "status" }, reason), sheet));
  key.control.focus();
}

async function start() {
  try {
    await signIn();
    await begin();
  } catch (error) {
    signedOut(error instanceof SignedOut ? "" : error.message);
  }
}

watch(say, () => signedOut());
$("sign-out").addEventListener("click", () => signedOut("You are signed out."));
$("menu").addEventListener("click", () => openMenu($("menu").getAttribute("aria-expanded") !== "true"));
$("skip").addEventListener("click", () => $("main").focus());
document.addEventListener("keydown", (event) => event.key === "Escape" && openMenu(false));
window.addEventListener("hashchange", () => caller() && enter());
start();

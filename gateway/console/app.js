// The operators' console: reads the admin API every two seconds and shows it. What comes from the API becomes text
// nodes only, never markup; the admin key is shown once, for a session, and lives on in no place that a script can read.

const REFRESH_MS = 2000;
const PAGE_SIZE = 20;
const HISTORY = 60;
const CSRF = { "x-fairlane-csrf": "1" };

const $ = (id) => document.getElementById(id);
const state = { after: null, lastId: null, tenant: null, timer: 0, run: 0, rates: new Map(), isSignedIn: false };

class SignedOut extends Error {}

// --- the admin API

async function api(path) {
  const response = await fetch(`/admin/v1${path}`, {
    headers: CSRF,
    cache: "no-store",
    signal: AbortSignal.timeout(10000),
  });
  if (response.status === 401) throw new SignedOut(state.isSignedIn ? "The session has ended." : "");
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
  state.isSignedIn = true;
  return response.json();
}

async function session(method, key) {
  const response = await fetch("/console/session", {
    method,
    headers: { ...CSRF, ...(key && { authorization: `Bearer ${key}` }) },
    cache: "no-store",
    signal: AbortSignal.timeout(20000),
  });
  if (response.status === 401) throw new SignedOut("This admin key is not accepted.");
  if (!response.ok) throw new Error(`the gateway answered ${response.status}`);
}

const tenantPath = (id) => `/tenants/${encodeURIComponent(id)}`;

async function read() {
  const query = new URLSearchParams({ limit: PAGE_SIZE, ...(state.after && { after: state.after }) });
  const batchQuery = new URLSearchParams({ limit: PAGE_SIZE, ...(state.tenant && { tenant: state.tenant }) });
  const [lanes, workers, batches, tenants] = await Promise.all(
    ["/lanes", "/workers", `/batches?${batchQuery}`, `/tenants?${query}`].map(api),
  );
  const quotas = await Promise.all(tenants.data.map((tenant) => api(`${tenantPath(tenant.id)}/quota`)));
  const chosen = state.tenant && (await readTenant(state.tenant));
  return { lanes: lanes.data, workers: workers.data, batches, tenants, quotas, chosen };
}

async function readTenant(id) {
  const [quota, keys] = await Promise.all([api(`${tenantPath(id)}/quota`), api(`${tenantPath(id)}/keys?limit=100`)]);
  return quota && keys && { id, limits: quota.limits, keys: keys.data };
}

// --- figures as people read them

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const amount = (tokens) => (tokens < 1e7 ? whole : short).format(tokens);
const sum = (byLane) => Object.values(byLane ?? {}).reduce((total, each) => total + each, 0);

function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600000) return `${Math.floor(ms / 60000)} min`;
  return `${Math.floor(ms / 3600000)} h`;
}

// --- elements

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // strings become text nodes
  return made;
}

// One child per item, kept from refresh to refresh so that focus and selection stay where they are.
function keyed(parent, items, keyOf, make, fill) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = String(keyOf(item));
    const child = known.get(key) ?? make(item);
    child.dataset.key = key;
    fill(child, item);
    return child;
  });
  const stands = wanted.length === parent.children.length && wanted.every((child, i) => child === parent.children[i]);
  if (!stands) parent.replaceChildren(...wanted);
}

const row = (...cells) => () => element("tr", {}, ...cells.map((name) => element("td", name ? { class: name } : {})));

function date(seconds) {
  if (seconds == null) return "–";
  const moment = new Date(seconds * 1000).toISOString();
  return element("time", { datetime: moment, title: moment }, moment.slice(0, 10));
}

const badge = (word, tone) => element("span", { class: `state ${tone}` }, word);

// A bar that is full is an alarm where it shows room that is taken, not where it shows work that is done.
function meter(label, parts, total, isRoom = true) {
  const taken = parts.reduce((all, [, amount]) => all + amount, 0);
  const bar = element("div", { class: isRoom && taken >= total ? "bar full" : "bar", "aria-hidden": "true" });
  for (const [name, amount] of parts) {
    const part = element("i", { class: name });
    part.style.width = `${total > 0 ? Math.min(100, (100 * amount) / total) : 0}%`;
    bar.append(part);
  }
  return element("div", { class: "meter" }, bar, element("span", {}, label));
}

function limitMeter([name, limit]) {
  const { used = 0, reserved = 0 } = limit;
  const label = `${name.replaceAll("_", " ")}: ${amount(used)} used, ${amount(reserved)} reserved of ${amount(limit.limit)}`;
  return meter(label, [["used", used], ["reserved", reserved]], limit.limit);
}

const isCounted = ([name]) => !name.startsWith("max_");
const share = ([, limit]) => (limit.limit > 0 ? (limit.used + limit.reserved) / limit.limit : 1);

// --- the parts of the page

const FIGURES = [
  ["Queued", (lane) => whole.format(lane.queued)],
  ["Oldest", (lane) => duration(lane.oldest_wait_ms)],
  ["Running", (lane) => whole.format(lane.running)],
  ["Preempted", (lane) => whole.format(lane.preempted)],
  ["TPOT target", (lane) => duration(lane.tpot_target_ms)],
];

function makeLane(lane) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${HISTORY - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(svg.namespaceURI, "polyline"));
  const figures = FIGURES.map(([name]) => element("div", {}, element("dt", {}, name), element("dd")));
  const rate = element("span", { class: "rate" }, element("span"), element("small", {}, " tokens/s"));
  return element("article", { class: "card lane" }, element("header", {}, element("h3", {}, lane.lane), rate), svg, element("dl", { class: "figures" }, ...figures));
}

function fillLane(card, lane) {
  const rates = [...(state.rates.get(lane.lane) ?? []), lane.tokens_per_s].slice(-HISTORY);
  state.rates.set(lane.lane, rates);
  const top = Math.max(1, ...rates);
  const points = rates.map((rate, i) => `${HISTORY - rates.length + i},${(19 - (18 * rate) / top).toFixed(1)}`);
  card.querySelector("polyline").setAttribute("points", points.join(" "));
  card.querySelector(".rate span").textContent = short.format(lane.tokens_per_s);
  card.querySelectorAll("dd").forEach((figure, i) => (figure.textContent = FIGURES[i][1](lane)));
}

function fillWorker(line, worker) {
  const kv = worker.blocks_total - worker.blocks_free;
  const host = worker.host_slots_total - worker.host_slots_free;
  const count = (taken, total) => `${whole.format(taken)} of ${whole.format(total)}`;
  fillCells(line, [
    worker.id,
    worker.model,
    worker.draining ? badge("draining", "warn") : badge("serving", "good"),
    meter(count(kv, worker.blocks_total), [["used", kv]], worker.blocks_total),
    meter(count(host, worker.host_slots_total), [["used", host]], worker.host_slots_total || 1),
    whole.format(sum(worker.running)),
    whole.format(sum(worker.preempted)),
    short.format(sum(worker.tokens_per_s)),
    duration(worker.step_ms),
  ]);
}

function fillCells(line, contents) {
  contents.forEach((content, i) => line.cells[i].replaceChildren(content));
}

function fillBatch(line, batch) {
  const label = `${whole.format(batch.completed)} answered, ${whole.format(batch.failed)} failed of ${whole.format(batch.total)}`;
  const left = batch.window_ends_at * 1000 - Date.now();
  fillCells(line, [
    batch.id,
    batch.tenant,
    badge(batch.status.replaceAll("_", " "), batch.status === "in_progress" ? "good" : "warn"),
    meter(label, [["used", batch.completed], ["failed", batch.failed]], batch.total, false),
    left > 0 ? `in ${duration(left)}` : badge("over", "bad"),
    amount(batch.enqueued_tokens),
    batch.gateway ?? badge("nobody", "warn"),
  ]);
}

function makeTenant(tenant) {
  const open = element("button", { class: "quiet", type: "button", "aria-label": `Details of ${tenant.id}` }, "Details");
  open.addEventListener("click", () => choose(tenant.id));
  const line = row("id", "", "", "number", "wide", "")();
  line.cells[5].append(open);
  return line;
}

function fillTenant(line, { tenant, quota }) {
  const [tightest] = Object.entries(quota?.limits ?? {}).filter(isCounted).sort((a, b) => share(b) - share(a));
  fillCells(line, [
    tenant.parent ? `${tenant.id} (below ${tenant.parent})` : tenant.id,
    badge(tenant.state, tenant.state === "active" ? "good" : "bad"),
    tenant.lanes.join(", "),
    String(tenant.weight),
    tightest ? limitMeter(tightest) : "no limit",
  ]);
}

function keyState(key) {
  if (key.state !== "active") return badge(key.state, "bad");
  if (key.expires_at != null && key.expires_at * 1000 <= Date.now()) return badge("expired", "bad");
  return badge("active", "good");
}

function fillKey(line, key) {
  fillCells(line, [key.name, key.id, keyState(key), date(key.created_at), date(key.expires_at)]);
}

function showTenant(chosen) {
  $("tenant").hidden = !chosen;
  if (!chosen) return;
  const limits = Object.entries(chosen.limits);
  $("tenant-title").textContent = chosen.id;
  const text = ([name, limit]) => element("span", { class: "meter" }, `${name.replaceAll("_", " ")}: ${amount(limit.limit)}`);
  const shown = (limit) => (isCounted(limit) ? limitMeter(limit) : text(limit));
  keyed($("limits"), limits, ([name]) => name, () => element("li"), (item, limit) => item.replaceChildren(shown(limit)));
  keyed($("keys"), chosen.keys, (key) => key.id, row("", "id", "", "", ""), fillKey);
  $("no-limits").hidden = limits.length > 0;
  $("no-keys").hidden = chosen.keys.length > 0;
}

function show({ lanes, workers, batches, tenants, quotas, chosen }) {
  keyed($("lanes"), lanes, (lane) => lane.lane, makeLane, fillLane);
  keyed($("workers"), workers, (worker) => worker.id, row("id", "", "", "wide", "wide", "number", "number", "number", "number"), fillWorker);
  keyed($("batches"), batches.data, (batch) => batch.id, row("id", "", "", "wide", "", "number", "id"), fillBatch);
  const pairs = tenants.data.map((tenant, i) => ({ tenant, quota: quotas[i] }));
  keyed($("tenants"), pairs, (pair) => pair.tenant.id, (pair) => makeTenant(pair.tenant), fillTenant);
  showTenant(chosen);
  $("no-workers").hidden = workers.length > 0;
  $("no-batches").hidden = batches.data.length > 0;
  $("more-batches").hidden = !batches.has_more;
  $("no-tenants").hidden = tenants.data.length > 0;
  $("pages").hidden = !tenants.has_more && !state.after;
  $("first-page").disabled = !state.after;
  $("next-page").disabled = !tenants.has_more;
  state.lastId = tenants.last_id;
}

// --- what happens when

async function refresh() {
  clearTimeout(state.timer);
  const run = ++state.run; // an answer that a later refresh has overtaken is dropped
  try {
    if (!document.hidden) {
      const news = await read();
      if (run !== state.run) return;
      show(news);
      say(`Updated ${new Date().toLocaleTimeString()}`, false);
    }
  } catch (error) {
    if (run !== state.run) return;
    if (error instanceof SignedOut) return signOut(error.message);
    say(`Not updated: ${error.message}`, true);
  }
  state.timer = setTimeout(refresh, REFRESH_MS);
}

function say(text, stale) {
  $("status").classList.toggle("stale", stale);
  $("status").textContent = text;
}

// The chosen tenant stands in the address, so that a reload or a colleague with the link sees the same.
function choose(id) {
  location.hash = id === null ? "" : new URLSearchParams({ tenant: id });
}

function readAddress() {
  state.tenant = new URLSearchParams(location.hash.slice(1)).get("tenant");
}

async function followAddress() {
  readAddress();
  if ($("board").hidden) return;
  await refresh();
  $("tenant-title").focus();
}

function turnTo(after) {
  state.after = after;
  refresh();
}

function signOut(reason = "") {
  clearTimeout(state.timer);
  state.run += 1;
  state.isSignedIn = false;
  state.after = null;
  enter(false);
  $("sign-in-error").textContent = reason;
  $("admin-key").focus();
}

async function begin() {
  try {
    await api("/workers");
    enter(true);
  } catch (error) {
    enter(!(error instanceof SignedOut)); // a store that is away says nothing of the session
  }
}

function enter(signedIn) {
  for (const id of ["board", "status", "sign-out"]) $(id).hidden = !signedIn;
  $("sign-in").hidden = signedIn;
  if (signedIn) refresh();
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = $("admin-key").value.trim();
  $("admin-key").value = "";
  try {
    await session("POST", key);
    enter(true);
  } catch (error) {
    $("sign-in-error").textContent = error instanceof SignedOut ? error.message : `Not signed in: ${error.message}`;
  }
});
$("sign-out").addEventListener("click", async () => {
  try {
    await session("DELETE");
    signOut();
  } catch (error) {
    say(`Not signed out: ${error.message}`, true);
  }
});
$("close-tenant").addEventListener("click", () => choose(null));
$("first-page").addEventListener("click", () => turnTo(null));
$("next-page").addEventListener("click", () => turnTo(state.lastId));
window.addEventListener("hashchange", followAddress);
document.addEventListener("visibilitychange", () => document.hidden || $("board").hidden || refresh());
readAddress();
begin();

// Live data: one event stream for all views, or polling if there is no stream.

import { ROOT, SignedOut, get, getIfThere } from "./api.js";

const EVERY_MS = 2000;
const RETRY_MS = 3000;
const LINGERS_MS = 5000;
const STORE_AWAY = "quota_store_unavailable";
const listeners = new Map([["overview", new Set()], ["kv", new Set()], ["store", new Set()]]);
let source = null;
let timer = 0;
let lastOverview = null;
let lingering = 0;
let awaySince = null;
let hasStream = true;
let hasMaps = false;
let status = () => {};
let ended = () => {};

/** Sets the callbacks `onstatus(text, isStale)` and `onend()`, the latter for the end of the session. */
export function watch(onstatus, onend) {
  status = onstatus;
  ended = onend;
}

/**
 * Calls back with each `overview` or `kv` until the signal aborts, and at once with the last overview. `kv` is null if
 * this gateway does not report it. `store` is the Unix time since when the store does not answer, and null once it does.
 */
export function follow(kind, signal, callback) {
  const set = listeners.get(kind);
  set.add(callback);
  signal.addEventListener("abort", () => {
    set.delete(callback);
    clearTimeout(lingering);
    lingering = setTimeout(() => isWanted() || stop(), LINGERS_MS); // the stream is kept from view to view
  });
  if (kind === "overview" && lastOverview) callback(lastOverview);
  if (!source && !timer) start();
  else if (kind === "kv" && source && !hasMaps) reopen();
  else if (kind === "kv" && !hasStream) callback(null);
}

export function stop() {
  source?.close();
  source = null;
  clearTimeout(timer);
  timer = 0;
  lastOverview = null;
  status("", false);
}

const isWanted = () => [...listeners.values()].some((each) => each.size);
const tell = (kind, data) => listeners.get(kind).forEach((callback) => callback(data));

function heard(overview) {
  lastOverview = overview;
  if (awaySince !== null) tell("store", (awaySince = null));
  status(`Live, ${new Date().toLocaleTimeString("en-GB")}`, false);
  tell("overview", overview);
}

function away() {
  awaySince ??= Date.now() / 1000;
  tell("store", awaySince);
}

async function start() {
  timer = -1; // reserved while the first read runs
  try {
    const overview = await getIfThere("/overview");
    if (!isWanted()) return stop();
    if (overview === null) return readInTurn();
    heard(overview);
    return hasStream ? open() : readInTurn();
  } catch (error) {
    return again(error, start);
  }
}

function reopen() {
  source.close();
  open();
}

/** Opens the stream. It includes the maps of blocks only if a view shows them. */
function open() {
  timer = 0;
  let wasOpen = false;
  hasMaps = listeners.get("kv").size > 0;
  source = new EventSource(`${ROOT}/admin/v1/live?kv=${hasMaps}`);
  source.addEventListener("open", () => (wasOpen = true));
  source.addEventListener("overview", (event) => heard(JSON.parse(event.data)));
  source.addEventListener("unavailable", () => {
    away();
    status("Not updated: the store does not answer.", true);
  });
  source.addEventListener("kv", (event) => tell("kv", JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (source?.readyState !== EventSource.CLOSED) return status("Reconnecting…", true);
    source = null; // rejected: the session has ended, or there is no stream
    if (wasOpen) return (timer = setTimeout(start, RETRY_MS));
    hasStream = false;
    tell("kv", null);
    return readInTurn();
  });
}

/** The overview of an older gateway, in the current format. */
async function assembled() {
  const [lanes, workers] = await Promise.all([get("/lanes"), get("/workers")]);
  return { at: Date.now() / 1000, lanes: lanes.data, workers: workers.data, tenants: null, refusals: null };
}

async function readInTurn() {
  try {
    if (!document.hidden) heard((await getIfThere("/overview")) ?? (await assembled()));
    if (isWanted()) timer = setTimeout(readInTurn, EVERY_MS);
    else stop();
  } catch (error) {
    again(error, readInTurn);
  }
}

function again(error, what) {
  if (error instanceof SignedOut) return ended();
  if (error.code === STORE_AWAY) away();
  status(`Not updated: ${error.message}`, true);
  timer = setTimeout(what, RETRY_MS);
  return undefined;
}

/** Calls `read` now and every `ms` while the page is visible, until the signal aborts. */
export function every(ms, signal, read) {
  let next = 0;
  async function turn() {
    clearTimeout(next);
    if (signal.aborted) return;
    try {
      if (!document.hidden) await read();
    } catch (error) {
      if (error instanceof SignedOut) return ended();
      if (!signal.aborted) status(`Not updated: ${error.message}`, true);
    }
    if (!signal.aborted) next = setTimeout(turn, ms);
  }
  const seen = () => document.hidden || turn();
  document.addEventListener("visibilitychange", seen);
  signal.addEventListener("abort", () => {
    clearTimeout(next);
    document.removeEventListener("visibilitychange", seen);
  });
  return turn();
}

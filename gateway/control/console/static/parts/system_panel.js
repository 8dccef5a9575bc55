// Figures over all lanes: refusals by code, KV memory, and workers.

import { fill, h, named, setText } from "../dom.js";
import { count, duration, percent } from "../format.js";
import { chart } from "./chart.js";
import { kvUsed } from "./history.js";
import { badge, link, meter } from "./pieces.js";
import { inWords } from "./range.js";
import { table } from "./table.js";

const sum = (byLane) => Object.values(byLane ?? {}).reduce((total, each) => total + each, 0);

export function systemPanel(range, signal, onzoom) {
  const kv = chart({ title: "KV memory in use", series: [{ name: "used", colour: "accent", area: true }], shown: percent, ceiling: 1, onzoom, signal });
  const refused = chart({ title: "Refused per interval", series: [{ name: "refused", colour: "bad", area: true }], shown: count, isWhole: true, onzoom, signal });
  const title = h("h2", {}, "Refusals");
  const codes = h("div", { class: "codes" });
  const workers = workersTable();
  const elements = [
    h("section", { class: "card" }, h("div", { class: "row-head" }, h("h2", {}, "Workers"), link("#/workers", "All of each")), workers.element),
    h("section", { class: "card" }, title, codes),
  ];
  const plots = h("section", { class: "card" }, h("div", { class: "row-head" }, h("h2", {}, "All lanes"), link("#/kv", "Map of KV blocks")), h("div", { class: "plots" }, kv.element, refused.element));

  let latest = null;

  function update(now) {
    latest = now;
    workers.update(now.workers);
  }
  function plot(points, axis) {
    const xs = points.map(({ at }) => at);
    const kept = points.filter(({ isNow }) => !isNow);
    setText(title, `Refusals ${kept.length || !latest ? inWords(range) : `in the last ${duration(1000 * (latest.window_s ?? 60))}`}`);
    if (latest) drawCodes(codes, kept.length ? summed(kept) : latest.refusals);
    kv.update(xs, [points.map((point) => point.kv_used ?? null)], axis);
    refused.update(xs, [points.map(({ refusals, isNow }) => (refusals && !isNow ? sum(refusals) : null))], axis);
  }
  return { elements, plots, update, plot };
}

/** Rejections by code, summed over all points. */
function summed(points) {
  const all = {};
  for (const { refusals } of points) for (const [code, n] of Object.entries(refusals ?? {})) all[code] = (all[code] ?? 0) + n;
  return all;
}

function drawCodes(place, refusals) {
  const found = Object.entries(refusals ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  const text = JSON.stringify(refusals === null ? null : found);
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  const told = found.map(([code, n]) => h("li", {}, h("code", {}, code), h("strong", {}, count(n))));
  fill(place, refusals === null ? h("p", { class: "muted" }, "This gateway does not count rejections here.")
    : told.length ? h("ul", { class: "code-list" }, ...told) : h("p", { class: "muted" }, "No requests were refused."));
}

const workersTable = () => table({
  caption: "Workers",
  key: (worker) => worker.id,
  empty: "There are no workers.",
  columns: [
    { name: "Worker", class: "id", cell: (worker) => named(worker.id, "id") },
    { name: "State", cell: (worker) => (worker.draining ? badge("draining", "warn") : badge("serving", "good")) },
    { name: "KV blocks", class: "wide", cell: (worker) => meter(percent(kvUsed([worker])), [["used", worker.blocks_total - worker.blocks_free]], worker.blocks_total) },
    { name: "Running", class: "number", cell: (worker) => count(sum(worker.running)) },
    { name: "Step", class: "number", cell: (worker) => duration(worker.step_ms) },
  ],
});


// One lane: its current figures against their targets, and its charts, which are apart.

import { fill, h, setText } from "../dom.js";
import { amount, count, duration, percent, rate } from "../format.js";
import { chart } from "./chart.js";
import { figure, laneClass, laneTitle, link } from "./pieces.js";

const PERCENTILES = ["p50", "p95", "p99"];

export function lanePanel(lane, signal, onzoom) {
  const figures = h("dl", { class: "figures" });
  const aims = {};
  let drawn = "";
  const plots = charts(lane, aims, { signal, onzoom, context: `${lane} lane` });
  const element = h("section", { class: `card lane ${laneClass(lane)}` },
    h("header", {}, h("h2", {}, laneTitle(lane)), h("p", { class: "targets muted" })),
    figures);
  const plotted = h("section", { class: `card lane ${laneClass(lane)}` }, h("div", { class: "row-head" }, h("h2", {}, laneTitle(lane)), link(`#/requests?lane=${lane}&slowest=ttft`, "Its slowest requests and their traces")), h("div", { class: "plots" }, ...plots.map(({ shown }) => shown.element)));
  const targets = element.querySelector(".targets");

  function update(now) {
    Object.assign(aims, { ttft_ms: now.ttft_target_ms, tpot_ms: now.tpot_target_ms });
    setText(targets, `Targets: first token ${duration(now.ttft_target_ms)}, each further one ${duration(now.tpot_target_ms)}`);
    const state = JSON.stringify(now);
    if (state !== drawn) fill(figures, ...figuresOf(now)); // keeps a selection if nothing has changed
    drawn = state;
  }
  function plot(points, name, axis) {
    const xs = points.map(({ at }) => at);
    const of = (read) => points.map((point) => (point.lanes?.[name] ? (read(point.lanes[name]) ?? null) : null));
    for (const { shown, reads } of plots) shown.update(xs, reads.map(of), axis);
  }
  return { element, plots: plotted, update, plot };
}

/** The tone of a figure compared with its target. */
const against = (value, target) => (value == null || target == null ? "" : value <= target ? "good" : "bad");

function figuresOf(now) {
  const ttft = now.ttft_ms?.p95;
  const tpot = now.tpot_ms?.p95;
  return [
    figure("Throughput", rate(now.tokens_per_s), { unit: "tokens/s" }),
    figure("First token, p95", duration(ttft), { tone: against(ttft, now.ttft_target_ms), detail: now.ttft_ms && `p50 ${duration(now.ttft_ms.p50)}, p99 ${duration(now.ttft_ms.p99)}` }),
    figure("Further token, p95", duration(tpot), { tone: against(tpot, now.tpot_target_ms), detail: now.tpot_ms && `p50 ${duration(now.tpot_ms.p50)}, p99 ${duration(now.tpot_ms.p99)}` }),
    figure("Goodput", percent(now.goodput), { detail: now.requests == null ? null : `${amount(now.requests)} requests, ${amount(now.refused ?? 0)} refused` }),
    figure("Queued", count(now.queued), { detail: now.oldest_wait_ms ? `oldest ${duration(now.oldest_wait_ms)}` : null }),
    figure("Running", count(now.running)),
    figure("Preempted", count(now.preempted), { tone: now.preempted ? "warn" : "" }),
  ];
}

function charts(lane, aims, rest) {
  const hue = lane === "throughput" ? "throughput" : "latency";
  const percentiles = [
    { name: "p50", colour: `${hue}-soft` },
    { name: "p95", colour: hue },
    { name: "p99", colour: `${hue}-deep` },
    { name: "target", colour: "target", dash: true },
  ];
  const read = (field) => [...PERCENTILES.map((each) => (now) => now[field]?.[each])];
  return [
    { shown: chart({ title: "First token (TTFT)", series: percentiles, shown: duration, ...rest }), reads: [...read("ttft_ms"), targetWhere("ttft_ms", aims)] },
    { shown: chart({ title: "Further tokens (TPOT)", series: percentiles, shown: duration, ...rest }), reads: [...read("tpot_ms"), targetWhere("tpot_ms", aims)] },
    {
      shown: chart({ title: "Requests", series: [{ name: "running", colour: hue, area: true }, { name: "queued", colour: "info" }, { name: "preempted", colour: "warn" }], shown: count, ...rest }),
      reads: [(now) => now.running, (now) => now.queued, (now) => now.preempted],
    },
    { shown: chart({ title: "Throughput, tokens/s", series: [{ name: "tokens/s", colour: hue, area: true }], shown: rate, ...rest }), reads: [(now) => now.tokens_per_s] },
  ];
}

/** Draws a target only near the measured values: one that is many times higher would flatten the rest. */
function targetWhere(field, aims) {
  return (now) => (now[field]?.p99 * 4 >= aims[field] ? aims[field] : null);
}

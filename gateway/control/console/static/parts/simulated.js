// Results of a simulation: figures by load and lane, and plots.

import { h, named } from "../dom.js";
import { amount, count, duration, percent, plural, rate } from "../format.js";
import { chart } from "./chart.js";
import { card, facts, laneTag } from "./pieces.js";
import { table } from "./table.js";

const MOST_LINES = 6;

export function simulated(found, signal) {
  return [
    card("What was played", facts([
      ["Requests", found.played === found.requests ? count(found.played) : `${count(found.played)} of the ${count(found.requests)} in the trace`],
      ["Stretch", `${duration(1000 * found.from_s)} to ${duration(1000 * found.to_s)} of the trace`],
      ["Workers", `${count(found.workers)}, ${found.hardware === "fleet" ? "as those that are alive" : found.hardware}`],
      ["Rows left out", found.bad_rows ? [count(found.bad_rows), ...found.bad_rows_named.map((each) => h("div", { class: "muted" }, named(each)))] : "none"],
    ])),
    found.runs.length > 1 ? loads(found.output, signal) : null,
    ...found.runs.map((run) => oneRun(run, found.runs.length > 1, signal)),
  ];
}

function loads({ loads: xs, output_tokens_per_s: output, goodput_tokens_per_s: good }, signal) {
  const shown = chart({
    title: "Output tokens/s over load",
    isTime: false,
    xShown: (load) => `${load} ×`,
    series: [{ name: "all", colour: "info" }, { name: "within their targets", colour: "good", area: true }],
    shown: rate,
    signal,
  });
  shown.update(xs, [output, good]);
  return card("Load", shown.element);
}

function oneRun(run, isOneOfMany, signal) {
  const lanes = table({
    caption: "By lane",
    key: (lane) => lane.lane,
    columns: [
      { name: "Lane", cell: (lane) => laneTag(lane.lane) },
      { name: "Requests", class: "number", cell: (lane) => count(lane.requests) },
      { name: "Goodput", class: "number", cell: (lane) => percent(lane.goodput) },
      { name: "First token p50", class: "number", cell: (lane) => duration(lane.ttft_ms?.p50) },
      { name: "p95", class: "number", cell: (lane) => duration(lane.ttft_ms?.p95) },
      { name: "Target", class: "number", cell: (lane) => duration(lane.ttft_target_ms) },
      { name: "Further token p50", class: "number", cell: (lane) => duration(lane.tpot_ms?.p50) },
      { name: "p95", class: "number", cell: (lane) => duration(lane.tpot_ms?.p95) },
      { name: "Target", class: "number", cell: (lane) => duration(lane.tpot_target_ms) },
      { name: "Output tokens/s", class: "number", cell: (lane) => rate(lane.output_tokens_per_s) },
      { name: "Preemptions", class: "number", cell: (lane) => count(lane.preemptions) },
    ],
  });
  lanes.update(run.lanes);
  return card(isOneOfMany ? `Load ${run.load} ×` : "Figures",
    facts([
      ["Goodput", `${percent(run.goodput)} of ${plural(run.requests, "request")}`],
      ["Output", `${rate(run.output_tokens_per_s)} tokens/s`],
      ["Within targets", `${rate(run.goodput_tokens_per_s)} tokens/s`],
      ["Took", duration(1000 * run.duration_s)],
      ["Preemptions", `${count(run.preemptions)}, ${percent(run.preemption_tax)} of the workers' time`],
      ["Largest gap in service", `${amount(run.max_service_gap)} tokens`],
    ]),
    lanes.element,
    h("div", { class: "halves" }, service(run.plots, signal), tenants(run.tenants)));
}

function service({ service_step_s: step, service: all }, signal) {
  const drawn = all.slice(0, MOST_LINES);
  const shown = chart({
    title: "Service that each tenant had received, in tokens",
    isTime: false,
    xShown: (seconds) => duration(1000 * seconds),
    series: drawn.map(({ tenant }, i) => ({ name: tenant.length > 24 ? `${tenant.slice(0, 22)}…` : tenant, colour: `hue-${i}` })),
    shown: amount,
    height: 220,
    signal,
  });
  const longest = Math.max(0, ...drawn.map(({ values }) => values.length));
  const xs = Array.from({ length: longest }, (_, i) => i * step);
  shown.update(xs, drawn.map(({ values }) => xs.map((_, i) => values[i] ?? null)));
  return shown.element;
}

function tenants(found) {
  const shown = table({
    caption: "By tenant",
    key: (each) => each.tenant,
    empty: "No tenant was served.",
    columns: [
      { name: "Tenant", cell: (each) => named(each.tenant) },
      { name: "Requests", class: "number", cell: (each) => count(each.requests) },
      { name: "Goodput", class: "number", cell: (each) => percent(each.goodput) },
      { name: "First token p95", class: "number", cell: (each) => duration(each.ttft_ms?.p95) },
      { name: "Service", class: "number", cell: (each) => amount(each.service) },
    ],
  });
  shown.update(found.slice(0, 10));
  return shown.element;
}

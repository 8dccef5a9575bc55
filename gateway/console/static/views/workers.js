// The workers that are alive: how full each is, what a step takes, and draining.

import { change, list, segment } from "../api.js";
import { fill, h, keyed, named, toast } from "../dom.js";
import { ago, count, duration, rate, short } from "../format.js";
import { every } from "../live.js";
import { curve } from "../parts/curve.js";
import { badge, button, facts, laneTag, loading, meter, pageHead } from "../parts/pieces.js";
import { mayChange } from "../session.js";

const EVERY_MS = 2000;
const sum = (byLane) => Object.values(byLane ?? {}).reduce((total, each) => total + each, 0);

export async function workers(root, { signal }) {
  const cards = h("div", { class: "cards" });
  const nothing = h("p", { class: "card empty", hidden: true }, "No worker is alive. Requests are refused with 503 until one is.");
  const wait = loading();
  root.append(pageHead("Workers", "What computes, as each told in its last heartbeat."), wait, nothing, cards);
  await every(EVERY_MS, signal, async () => {
    const { data } = await list("/workers", {}, { signal });
    wait.remove();
    nothing.hidden = data.length > 0;
    keyed(cards, data, (worker) => worker.id, make, update);
  });

  function make(worker) {
    const costs = h("div", { class: "curve" }, worker.costs ? curve(worker.costs) : null);
    return h("article", { class: "card worker" }, h("header", {}, h("h2", {}, named(worker.id)), h("div", { class: "actions" })), h("div", { class: "told" }), costs);
  }
}

function update(card, worker) {
  const actions = card.querySelector(".actions");
  const state = worker.draining ? "draining" : "serving";
  if (actions.dataset.state !== state) {
    actions.dataset.state = state;
    fill(actions, badge(state, worker.draining ? "warn" : "good"), mayChange() && drainButton(worker));
  }
  const kv = worker.blocks_total - worker.blocks_free;
  const host = worker.host_slots_total - worker.host_slots_free;
  fill(card.querySelector(".told"),
    facts([
      ["Model", named(worker.model)],
      ["Up since", ago(worker.started_at)],
      ["Step", duration(worker.step_ms)],
      ["Single stream", worker.single_stream_ms ? `${duration(worker.single_stream_ms)} a token` : "not measured yet"],
      ["Prefill", worker.prefill_tokens_per_s ? `${short(worker.prefill_tokens_per_s)} tokens/s` : "not measured yet"],
      ["Sequences", `${count(sum(worker.running))} running of ${count(worker.max_sequences)} at most`],
    ]),
    h("div", { class: "meters" },
      meter(`KV blocks: ${count(kv)} of ${count(worker.blocks_total)} (${count(worker.block_size)} tokens each)`, [["used", kv]], worker.blocks_total),
      worker.host_slots_total
        ? meter(`Host slots: ${count(host)} of ${count(worker.host_slots_total)}`, [["reserved", host]], worker.host_slots_total)
        : h("p", { class: "muted" }, "No host memory is set aside for swapping.")),
    byLane(worker));
}

function byLane(worker) {
  const lanes = [...new Set([...Object.keys(worker.running), ...Object.keys(worker.waiting), ...Object.keys(worker.preempted)])].sort();
  const cell = (values, lane, shown = count) => h("td", { class: "number" }, shown(values[lane] ?? 0));
  if (!lanes.length) return h("p", { class: "muted" }, "It runs nothing.");
  return h("div", { class: "scroll" }, h("table", {}, h("caption", { class: "hidden-label" }, "By lane"),
    h("thead", {}, h("tr", {}, ...["Lane", "Running", "Waiting", "Preempted", "Tokens/s"].map((name, i) => h("th", { scope: "col", class: i ? "number" : null }, name)))),
    h("tbody", {}, ...lanes.map((lane) => h("tr", {}, h("td", {}, laneTag(lane)), cell(worker.running, lane), cell(worker.waiting, lane), cell(worker.preempted, lane), cell(worker.tokens_per_s, lane, rate))))));
}

function drainButton(worker) {
  const verb = worker.draining ? "undrain" : "drain";
  const label = worker.draining ? "Take jobs again" : "Drain";
  return button(label, async (event) => {
    event.target.disabled = true;
    try {
      await change("POST", `/workers/${segment(worker.id)}/${verb}`);
      toast(worker.draining ? `${worker.id} takes jobs again.` : `${worker.id} takes no more jobs.`);
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      event.target.disabled = false;
    }
  }, { describes: worker.id });
}

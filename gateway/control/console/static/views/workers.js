// Live workers: utilisation, step costs, and draining.

import { change, list, segment } from "../api.js";
import { fill, h, keyed, named, toast } from "../dom.js";
import { ago, count, duration, plural, rate, short } from "../format.js";
import { every } from "../live.js";
import { confirm } from "../parts/dialog.js";
import { curve } from "../parts/curve.js";
import { badge, button, facts, laneTag, link, loading, meter, pageHead } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { mayChange } from "../session.js";

const EVERY_MS = 2000;
const sum = (byLane) => Object.values(byLane ?? {}).reduce((total, each) => total + each, 0);

export async function workers(root, { fields, signal }) {
  const [id, model] = [fields.get("worker"), fields.get("model")];
  const cards = h("div", { class: "cards" });
  const nothing = h("p", { class: "card empty", hidden: true }, "No worker is here. Requests for a model without workers are refused with 503.");
  const wait = loading();
  const some = id ?? model;
  root.append(pageHead("Workers", h("span", {}, "The workers, as of their last heartbeats.", some && [" Only ", named(some), ". ", link("#/workers", "All workers")])), wait, nothing, cards);
  await every(EVERY_MS, signal, async () => {
    const alive = (await list("/workers", {}, { signal })).data;
    const data = alive.filter((worker) => (id ?? worker.id) === worker.id && (model ?? worker.model) === worker.model);
    wait.remove();
    nothing.hidden = data.length > 0;
    keyed(cards, data, (worker) => worker.id, make, update);
  });

  function make(worker) {
    const parts = { actions: h("div", { class: "actions" }), told: h("div", { class: "told" }), lanes: lanesTable(), costs: h("div", { class: "curve" }) };
    const card = h("article", { class: "card worker" }, h("header", {}, h("h2", {}, named(worker.id)), parts.actions), parts.told, parts.lanes.element, parts.costs);
    drawn.set(card, parts);
    return card;
  }
}

/** Updates the changing parts of each card. */
const drawn = new WeakMap();

function update(card, worker) {
  const { actions, told, lanes, costs } = drawn.get(card);
  const state = worker.draining ? "draining" : "serving";
  if (actions.dataset.state !== state) {
    actions.dataset.state = state;
    fill(actions, badge(state, worker.draining ? "warn" : "good"), mayChange() && drainButton(worker));
  }
  const kv = worker.blocks_total - worker.blocks_free;
  const host = worker.host_slots_total - worker.host_slots_free;
  fill(told,
    facts([
      ["Model", named(worker.model)],
      ["Up since", ago(worker.started_at)],
      ["Step", worker.step_ms ? duration(worker.step_ms) : "nothing runs"],
      ["Single stream", worker.single_stream_ms ? `${duration(worker.single_stream_ms)} a token` : "not measured yet"],
      ["Prefill", worker.prefill_tokens_per_s ? `${short(worker.prefill_tokens_per_s)} tokens/s` : "not measured yet"],
      ["Sequences", `${count(sum(worker.running))} running of ${count(worker.max_sequences)} at most`],
    ]),
    h("div", { class: "meters" },
      meter(`KV blocks: ${count(kv)} of ${count(worker.blocks_total)} (${count(worker.block_size)} tokens each)`, [["used", kv]], worker.blocks_total),
      worker.host_slots_total
        ? meter(`Host slots: ${count(host)} of ${count(worker.host_slots_total)}`, [["reserved", host]], worker.host_slots_total)
        : h("p", { class: "muted" }, "No host memory is reserved for swapping.")));
  const names = [...new Set(["running", "waiting", "preempted"].flatMap((field) => Object.keys(worker[field])))].sort();
  fill(costs, worker.costs && curve(worker.costs));
  lanes.update(names.map((lane) => ({ lane, running: worker.running[lane], waiting: worker.waiting[lane], preempted: worker.preempted[lane], rate: worker.tokens_per_s[lane] })));
}

const lanesTable = () => table({
  caption: "By lane",
  key: ({ lane }) => lane,
  empty: "It runs nothing.",
  columns: [
    { name: "Lane", cell: ({ lane }) => laneTag(lane) },
    { name: "Running", class: "number", cell: ({ running }) => count(running ?? 0) },
    { name: "Waiting", class: "number", cell: ({ waiting }) => count(waiting ?? 0) },
    { name: "Preempted", class: "number", cell: ({ preempted }) => count(preempted ?? 0) },
    { name: "Tokens/s", class: "number", cell: (each) => rate(each.rate ?? 0) },
  ],
});

function drainButton(worker) {
  const { id, draining } = worker;
  return button(draining ? "Take jobs again" : "Drain", async (event) => {
    event.target.disabled = true;
    try {
      if (!draining && !(await mayDrain(id))) return;
      await change("POST", `/workers/${segment(id)}/${draining ? "undrain" : "drain"}`);
      toast(draining ? `${id} takes jobs again.` : `${id} takes no more jobs.`);
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      event.target.disabled = false;
    }
  }, { describes: id });
}

/** Confirms a drain. The workers are reloaded first, since the consequence depends on the others of the model. */
async function mayDrain(id) {
  const { data } = await list("/workers");
  const worker = data.find((each) => each.id === id);
  if (!worker) throw new Error(`${id} is not alive any more.`);
  return confirm(`Drain ${id}?`, consequence(worker, data), "Drain");
}

function consequence(worker, alive) {
  const running = sum(worker.running) + sum(worker.preempted);
  const others = alive.filter(({ id, model, draining }) => id !== worker.id && model === worker.model && !draining);
  const runs = running ? `Its ${plural(running, "running request")} will finish or be handed back. ` : "It runs no requests now. ";
  return others.length
    ? `It takes no more jobs. ${runs}${plural(others.length, "other worker")} still ${others.length === 1 ? "serves" : "serve"} ${worker.model}.`
    : `It is the last worker that serves ${worker.model}. ${runs}New requests for this model get 503 no_worker until a worker takes jobs again.`;
}

// The models: workers, load by lane, and what each is.

import { fill, h, keyed, named } from "../dom.js";
import { count, dated, duration, percent, plural, rate } from "../format.js";
import { follow } from "../live.js";
import { kvUsed } from "../parts/history.js";
import { badge, facts, laneTag, link, loading, meter, missing, pageHead } from "../parts/pieces.js";
import { table } from "../parts/table.js";

const HASH = 12;

export async function models(root, { fields, signal }) {
  const only = fields.get("model");
  const cards = h("div", { class: "cards large" });
  const nothing = h("p", { class: "card empty", hidden: true }, "No model is here. A model is listed for seven days after its last worker announced it.");
  const wait = loading();
  root.append(pageHead("Models", h("span", {}, "Each model with its workers and its load.", only && [" Only ", named(only), ". ", link("#/models", "All models")])), wait, nothing, cards);
  const drawn = new Map();
  follow("overview", signal, ({ models: all }) => {
    wait.remove();
    if (!all) return void fill(cards, missing("its models"));
    const found = all.filter((each) => (only ?? each.model) === each.model);
    nothing.hidden = found.length > 0;
    keyed(cards, found, (each) => each.model, (each) => {
      drawn.set(each.model, card(each));
      return drawn.get(each.model).element;
    }, (_, each) => drawn.get(each.model).update(each));
  });
}

function card({ model }) {
  const state = h("div", { class: "actions" });
  const load = h("div", { class: "meters" });
  const about = h("div");
  const lanes = table({
    caption: `Lanes of ${model}`,
    key: (each) => each.lane,
    columns: [
      { name: "Lane", cell: (each) => laneTag(each.lane) },
      { name: "Running", class: "number", cell: (each) => count(each.running) },
      { name: "Queued", class: "number", cell: (each) => count(each.queued) },
      { name: "Oldest wait", class: "number", cell: (each) => (each.queued ? duration(each.oldest_wait_ms) : "–") },
      { name: "Preempted", class: "number", cell: (each) => count(each.preempted) },
      { name: "Tokens/s", class: "number", cell: (each) => rate(each.tokens_per_s) },
    ],
  });
  const element = h("article", { class: "card worker" }, h("header", {}, h("h2", {}, named(model)), state), load, lanes.element, about);
  let last = "";
  function update(now) {
    const text = JSON.stringify(now);
    if (text === last) return;
    last = text;
    fill(state, now.workers ? badge("serving", "good") : badge("no worker", "bad"), now.card_sha256.length > 1 && badge("two versions", "warn"),
      link(`#/workers?model=${encodeURIComponent(model)}`, plural(now.workers, "worker"), now.draining > 0 && `, ${count(now.draining)} draining`));
    fill(load,
      meter(`${count(now.running)} running of ${count(now.max_sequences)} at most`, [["used", now.running]], now.max_sequences),
      meter(`KV memory: ${percent(kvUsed([now]))} of ${plural(now.blocks_total, "block")}`, [["used", now.blocks_total - now.blocks_free]], now.blocks_total));
    lanes.update(now.lanes);
    fill(about, facts([
      ["Context", `${count(now.context_length)} tokens`],
      ["Makes", now.output],
      ["Takes", ["text", ...now.media].join(", ")],
      ["Single stream", now.single_stream_ms ? `${duration(now.single_stream_ms)} a token` : "not measured yet"],
      ["Version", now.version ? h("span", { class: "id", title: now.version }, now.version.slice(0, HASH)) : "not reported"],
      [now.card_sha256.length > 1 ? "Cards" : "Card", now.card_sha256.map((each) => h("div", { class: "id", title: each }, each.slice(0, HASH)))],
      ["Created", now.created_at ? dated(now.created_at) : undefined],
    ]));
  }
  return { element, update };
}

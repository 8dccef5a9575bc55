// The same prompt on both lanes at once, with a tenant's key, showing waits, pauses and preemptions live.

import { ROOT } from "../api.js";
import { fill, h, named } from "../dom.js";
import { duration, rate } from "../format.js";
import { field, form } from "../parts/dialog.js";
import { badge, card, laneTitle, link, pageHead } from "../parts/pieces.js";
import { eventsOf } from "../parts/sse.js";
import { timeline } from "../parts/timeline.js";

const LANES = ["latency", "throughput"];
const LEGEND = [["queued", "waits"], ["prefilling", "prompt is computed"], ["streaming", "streams"], ["preempted", "preempted or paused"]];
const PATH = `${ROOT}/v1/chat/completions`;

export async function playground(root, { signal }) {
  const key = field({ name: "key", label: "Tenant key", type: "password", required: true, hint: "Used only for these streams and not stored." });
  const model = field({ name: "model", label: "Model", type: "select", options: [["", "the first one the key may use"]] });
  const prompt = field({ name: "prompt", label: "Prompt", type: "textarea", rows: 2, required: true, value: "Explain in some paragraphs how a library lends its books fairly when everybody wants the same one." });
  const most = field({ name: "max_tokens", label: "Output at most", type: "number", value: 200, hint: "tokens" });
  const copies = field({ name: "copies", label: "Streams on the throughput lane", type: "number", value: 1, hint: "1 to 16: with several, the latency lane preempts them" });
  const panes = Object.fromEntries(LANES.map((lane) => [lane, pane(lane)]));
  let running = new AbortController();
  const stop = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => running.abort() }, "Stop");

  key.control.addEventListener("change", () => listModels(key, model).catch(() => {}));
  const sheet = form({
    fields: [key, model, most, copies, prompt],
    action: "Send on both lanes",
    layout: "two",
    async send(values) {
      running = new AbortController();
      signal.addEventListener("abort", () => running.abort());
      stop.hidden = false;
      try {
        if (!model.control.value) await listModels(key, model);
        const asked = { ...values, model: model.control.value };
        const extra = Math.min(16, Math.max(1, Number(values.copies) || 1)) - 1;
        const others = Array.from({ length: extra }, () => stream("throughput", asked, running.signal, null));
        await Promise.all([...LANES.map((lane) => stream(lane, asked, running.signal, panes[lane])), ...others]);
      } finally {
        stop.hidden = true;
      }
    },
  });
  sheet.querySelector(".buttons").prepend(stop);
  root.append(
    pageHead("Playground", h("span", {}, "One prompt on both lanes at once, at temperature 0: both produce the same output, whatever preempts them. The outcome of a request is shown in ", link("#/requests", "Requests"), ".")),
    card(null, sheet),
    h("p", { class: "legend" }, ...LEGEND.map(([state, what]) => h("span", {}, h("span", { class: `dot in-${state}` }), what))),
    h("div", { class: "halves" }, ...LANES.map((lane) => panes[lane].element)));
}

/** Fills a select with the models that a key may use. */
export async function listModels(key, model) {
  const response = await fetch(`${ROOT}/v1/models`, { headers: { authorization: `Bearer ${key.read() ?? ""}` }, cache: "no-store" });
  if (!response.ok) throw new Error(await refusalOf(response));
  const { data } = await response.json();
  const names = data.map(({ id }) => id);
  const chosen = names.includes(model.control.value) ? model.control.value : names[0];
  fill(model.control, ...names.map((id) => h("option", { value: id, selected: id === chosen }, id)));
}

async function refusalOf(response) {
  if (response.status === 404) return "The tenant API is not served on this port, which is the operators' own.";
  const said = await response.json().catch(() => null);
  return said?.error ? `${response.status} ${said.error.code}: ${said.error.message}` : `The gateway answered ${response.status}.`;
}

/** Where a stream is shown: its state, figures, text and events. */
export function pane(lane) {
  const state = h("span", { class: "stream-state" }, badge("idle"));
  const figures = h("p", { class: "figures-line muted" }, "Not sent yet.");
  const text = h("div", { class: "stream", tabindex: "0", role: "region", "aria-label": `Answer on the ${lane} lane` });
  const events = h("ol");
  const log = h("div", { class: "events", role: "log", tabindex: "0", "aria-label": `What happened on the ${lane} lane` }, events);
  const line = timeline();
  const element = h("section", { class: "card pane" }, h("header", {}, h("h2", {}, laneTitle(lane)), state), figures, line.element, text, log);
  return { element, state, figures, text, events, line };
}

const TONES = { queued: "info", prefilling: "info", streaming: "good", done: "good", paused: "warn", preempted: "warn", refused: "bad", failed: "bad", stopped: "" };

/** Runs one stream and shows it in its pane, if it has one. */
export async function stream(lane, asked, signal, place) {
  const begun = performance.now();
  const seen = { first: null, last: null, tokens: 0, id: null, isCut: null };
  const at = () => performance.now() - begun;
  const turn = (state, note = null) => {
    if (!place) return;
    fill(place.state, badge(state, TONES[state] ?? ""));
    place.line.enter(state, at());
    if (note) place.events.append(h("li", {}, h("span", { class: "muted" }, duration(at())), " ", note));
    place.events.parentElement.scrollTop = place.events.parentElement.scrollHeight;
  };
  if (place) {
    fill(place.text);
    fill(place.events);
    fill(place.figures, "Sent; no token yet.");
    place.line.begin();
  }
  turn("queued");
  try {
    const response = await fetch(PATH, {
      method: "POST",
      signal,
      cache: "no-store",
      headers: { authorization: `Bearer ${asked.key}`, "content-type": "application/json", "x-fairlane-lane": lane, "x-fairlane-progress": "1" },
      body: JSON.stringify({ model: asked.model, messages: [{ role: "user", content: asked.prompt }], max_tokens: asked.max_tokens, temperature: 0, stream: true, stream_options: { include_usage: true } }),
    });
    seen.id = response.headers.get("x-request-id");
    if (response.ok) {
      for await (const event of eventsOf(response)) take(event, seen, turn, place, at);
      turn(seen.isCut ? "failed" : "done", seen.isCut);
    } else {
      turn("refused", await refusalOf(response));
    }
  } catch (error) {
    turn(signal.aborted ? "stopped" : "failed", signal.aborted ? null : error.message);
  }
  if (place) tellFigures(place, seen, at());
}

function take({ comment, data }, seen, turn, place, at) {
  if (comment !== undefined) {
    const [word] = comment.split(" ");
    turn(word === "resumed" ? "streaming" : word, comment);
    return;
  }
  if (data === "[DONE]") return;
  const chunk = JSON.parse(data);
  if (chunk.error) {
    seen.isCut = `${chunk.error.code}: ${chunk.error.message}`;
    return;
  }
  if (chunk.usage) seen.tokens = chunk.usage.completion_tokens;
  const piece = chunk.choices?.[0]?.delta?.content;
  if (!piece) return;
  if (seen.first === null) seen.first = at();
  seen.last = at();
  if (!chunk.usage) seen.tokens += 1;
  if (!place) return;
  if (place.line.state !== "streaming") turn("streaming");
  place.text.append(piece);
  place.text.scrollTop = place.text.scrollHeight;
  tellFigures(place, seen, at());
}

function tellFigures(place, seen, total) {
  const perToken = seen.tokens > 1 ? (seen.last - seen.first) / (seen.tokens - 1) : null;
  fill(place.figures,
    seen.first === null
      ? `no token · ended after ${duration(total)}`
      : `first token ${duration(seen.first)} · ${seen.tokens} tokens · ${duration(perToken)} a token · ${rate(perToken ? 1000 / perToken : null)} tokens/s · ${duration(total)} in all`,
    seen.id && h("span", {}, " · ", link(`#/requests/${encodeURIComponent(seen.id)}`, "why ", named(seen.id, "id"))));
}

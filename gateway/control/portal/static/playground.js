// One prompt to one model, with the key of this tab.

import { fill, h } from "./console/dom.js";
import { field, form } from "./console/parts/dialog.js";
import { card, link, pageHead } from "./console/parts/pieces.js";
import { listModels, pane, stream } from "./console/views/playground.js";
import { caller, ownKey } from "./account.js";

export async function playground(root, { signal }) {
  const { lanes, default_lane: usual } = caller();
  const model = field({ name: "model", label: "Model", type: "select" });
  const lane = field({ name: "lane", label: "Lane", type: "select", value: usual, options: lanes.map((each) => [each, each]) });
  const most = field({ name: "max_tokens", label: "Output at most", type: "number", value: 200, hint: "tokens" });
  const prompt = field({ name: "prompt", label: "Prompt", type: "textarea", rows: 3, required: true });
  const place = h("div");
  let running = new AbortController();
  const stop = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => running.abort() }, "Stop");
  signal.addEventListener("abort", () => running.abort());
  const sheet = form({
    fields: [model, lane, most, prompt],
    action: "Send",
    layout: "two",
    async send(values) {
      running = new AbortController();
      const shown = pane(values.lane);
      fill(place, shown.element);
      stop.hidden = false;
      await stream(values.lane, { ...values, key: ownKey() }, running.signal, shown);
      stop.hidden = true;
    },
  });
  sheet.querySelector(".buttons").prepend(stop);
  root.append(
    pageHead("Playground", h("span", {}, "Requests from here count for your limits and are charged like others. What became of them is in ", link("#/requests", "Requests"), ".")),
    card(null, sheet), place);
  await listModels({ read: ownKey }, model);
}

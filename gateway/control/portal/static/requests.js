// The tenant's last requests; each leads to what became of it and why.

import { get, segment } from "./console/api.js";
import { fill, h, named } from "./console/dom.js";
import { count, dated, duration } from "./console/format.js";
import { field, form } from "./console/parts/dialog.js";
import { requestLink } from "./console/parts/links.js";
import { money } from "./console/parts/money.js";
import { button, card, laneTag, pageHead, stateBadge } from "./console/parts/pieces.js";
import { table } from "./console/parts/table.js";

const PAGE = 25;

export async function requests(root, { signal }) {
  const id = field({ name: "id", label: "Request id", hint: "The header x-request-id of an answer, or the answer's own id.", required: true });
  const found = [];
  const rows = requestTable();
  const more = h("div", { class: "pages" });
  root.append(
    pageHead("Requests", "Requests that have ended, the newest first. No text of a request is stored.", button("Read again", () => read(null))),
    card(null, form({ fields: [id], action: "Show", send: ({ id: wanted }) => (isKey(wanted) ? id.fail("This is a key: enter the id of a request.") : go(wanted)) })),
    h("div", { class: "card flush" }, rows.element, more));

  async function read(after) {
    const page = await get("/requests", { limit: PAGE, after }, signal);
    if (after === null) found.length = 0;
    found.push(...page.data);
    rows.update(found);
    fill(more, page.has_more ? button("Show older", () => read(page.last_id)) : null);
  }
  await read(null);
}

const isKey = (text) => /^(fl|sk)-/.test(text) || text.split(".").length === 3;
const go = (id) => (location.hash = `#/requests/${segment(id)}`);

const requestTable = () => table({
  caption: "Requests",
  key: (each) => each.id,
  empty: "No request has ended lately. Of very many, the gateway keeps the unusual ones and a sample of the others.",
  columns: [
    { name: "Request", class: "id", cell: (each) => requestLink(each.id, each.request_id) },
    { name: "Arrived", class: "when", cell: (each) => dated(each.arrived_at) },
    { name: "Key", class: "id", cell: (each) => each.key },
    { name: "Model and lane", cell: (each) => [each.model ? named(each.model) : "–", h("div", {}, laneTag(each.lane))] },
    { name: "State", cell: (each) => [stateBadge(each.outcome ?? each.state), each.code && h("div", { class: "id muted" }, each.code)] },
    { name: "First token", class: "number", cell: (each) => duration(each.ttft_ms) },
    { name: "In all", class: "number", cell: (each) => duration(each.total_ms) },
    { name: "Tokens", class: "number", cell: (each) => h("span", { title: "prompt → output" }, `${count(each.prompt_tokens)} → ${count(each.output_tokens)}`) },
    { name: "Cost", class: "number", cell: (each) => money(each.cost) },
  ],
});

// A dry run of admission: whether a request of these sizes would be admitted now, and what prevents it.

import { change } from "../api.js";
import { fill, h, named } from "../dom.js";
import { amount, ago, duration, words } from "../format.js";
import { field, form } from "../parts/dialog.js";
import { badge, card, facts } from "../parts/pieces.js";
import { isMoney, money } from "../parts/money.js";
import { LANES } from "../parts/tenant_form.js";

export async function explain(place, { path, tenant }) {
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  place.append(card("Would a request be admitted now?", h("p", { class: "note" }, "Nothing is reserved or counted."), form({
    action: "Explain",
    layout: "two",
    fields: [
      field({ name: "prompt_tokens", label: "Prompt", type: "number", value: 500, hint: "tokens" }),
      field({ name: "max_output_tokens", label: "Output at most", type: "number", value: 500, hint: "tokens" }),
      field({ name: "lane", label: "Lane", type: "select", options: LANES, value: tenant.default_lane }),
      field({ name: "model", label: "Model", hint: "Empty: any model that the tenant may use." }),
      field({ name: "deadline_ms", label: "Deadline", type: "number", hint: "Milliseconds to the last token; empty: no deadline." }),
    ],
    send: async (values) => fill(answer, verdict(await change("POST", `${path}/explain`, values))),
  })), answer);
}

const figureOf = (limit, value) => (isMoney(limit.name) ? money(value) : amount(value));

function verdict(found) {
  const { limit } = found;
  return card(null,
    h("p", { class: "verdict" }, found.admitted ? badge("let in", "good") : badge(`refused: ${found.code}`, "bad"), " ",
      found.admitted ? "It would be admitted now." : found.message),
    facts([
      ["First token expected after", found.admitted ? duration(found.expected_wait_ms) : undefined],
      ["Would fit after", found.admitted ? undefined : found.retry_after_s == null ? "not known, or never" : duration(1000 * found.retry_after_s)],
      ["Limit", limit ? h("span", {}, words(limit.name), " of ", named(words(limit.scope))) : undefined],
      ["Stands at", limit ? `${figureOf(limit, limit.used)} used, ${figureOf(limit, limit.reserved)} reserved of ${figureOf(limit, limit.limit)}` : undefined],
      ["Asked for", limit ? figureOf(limit, limit.requested) : undefined],
      ["Resets", limit ? (limit.resets_at == null ? "it has no window" : ago(limit.resets_at)) : undefined],
    ]));
}

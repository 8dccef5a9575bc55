// Token prices, and each tenant's cost by month.

import { ROOT, change, get, getIfThere, query } from "../api.js";
import { fill, h, named, toast } from "../dom.js";
import { amount, count, duration } from "../format.js";
import { confirm, field, formDialog } from "../parts/dialog.js";
import { tenantLink } from "../parts/links.js";
import { money } from "../parts/money.js";
import { button, card, laneTag, missing, pageHead } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { mayOwn } from "../session.js";

const MILLION = 1_000_000;
const ANY = "*";

export async function moneyView(root, { fields, signal }) {
  root.append(pageHead("Money", "Token prices, fixed when a request is admitted, and the costs of each month."));
  const prices = await getIfThere("/prices", {}, signal);
  if (prices === null) return void root.append(missing("prices"));
  const place = h("div", { class: "stack" });
  root.append(place, await month(fields.get("month") ?? new Date().toISOString().slice(0, 7), signal));

  const show = (list) => fill(place, priceList(list, async (rows) => show(await change("PUT", "/prices", { prices: rows }, { version: list.version }))));
  show(prices);
}

/** The price list; `save(rows)` replaces it. Prices are shown per million tokens. */
function priceList({ prices, currency }, save) {
  const perMillion = (nanos) => money(nanos * MILLION);
  const others = (row) => prices.filter((each) => each !== row);
  const shown = table({
    caption: "Prices",
    key: (row) => `${row.model}/${row.lane}`,
    empty: "No prices are set: requests cost nothing, and spend limits are never reached.",
    columns: [
      { name: "Model", cell: (row) => (row.model === ANY ? "any" : named(row.model)) },
      { name: "Lane", cell: (row) => (row.lane === ANY ? "any" : laneTag(row.lane)) },
      { name: "Input, per million tokens", class: "number", cell: (row) => perMillion(row.input) },
      { name: "Cached input", class: "number", cell: (row) => perMillion(row.cached_input) },
      { name: "Output", class: "number", cell: (row) => perMillion(row.output) },
      ...(mayOwn() ? [{ name: "Actions", hidden: true, class: "actions", cell: (row) => [
        button("Edit", () => edit(row), { describes: `${row.model} ${row.lane}` }),
        button("Remove", () => remove(row), { kind: "quiet danger", describes: `${row.model} ${row.lane}` }),
      ] }] : []),
    ],
  });
  shown.update(prices);
  async function done(saved) {
    try {
      await saved;
      toast("Prices are saved and apply to new requests.");
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  async function remove(row) {
    const what = `${row.model === ANY ? "any model" : row.model} in ${row.lane === ANY ? "any lane" : `the ${row.lane} lane`}`;
    if (await confirm("Remove this price?", `New requests for ${what} are charged by the next wider price, or nothing.`, "Remove")) await done(save(others(row)));
  }
  const edit = (row = null) => formDialog(row ? "Edit price" : "New price", {
    intro: `In ${currency} for a million tokens; a thousandth is the smallest step. Of the rows that fit a request, the one that names most holds.`,
    action: "Save price",
    layout: "two",
    fields: [
      field({ name: "model", label: "Model", value: row?.model ?? ANY, hint: "* is any." }),
      field({ name: "lane", label: "Lane", type: "select", value: row?.lane ?? ANY, options: [[ANY, "any"], ["latency", "latency"], ["throughput", "throughput"]] }),
      field({ name: "input", label: "Input", type: "number", value: row && row.input / 1000, required: true }),
      field({ name: "cached_input", label: "Cached input", type: "number", value: row && row.cached_input / 1000, hint: "Empty: as input." }),
      field({ name: "output", label: "Output", type: "number", value: row && row.output / 1000, required: true }),
    ],
    async send(values) {
      await save([...others(row), { ...values, input: nanos(values.input), cached_input: nanos(values.cached_input), output: nanos(values.output) }]);
      toast("Prices are saved and apply to new requests.");
    },
  });
  return card(null, h("div", { class: "row-head" }, h("h2", {}, "Prices"), mayOwn() && button("New price", () => edit(), { kind: "primary" })), shown.element);
}

/** Converts a price per million tokens to the API's billionths per token. Invalid input is sent unchanged. */
const nanos = (value) => (typeof value === "number" ? Number((value * 1000).toPrecision(15)) : value);

async function month(chosen, signal) {
  const found = await get("/chargeback", { month: chosen }, signal);
  const picker = h("input", { type: "month", value: chosen, "aria-label": "Month", onchange: (event) => event.target.value && (location.hash = `#/money?month=${event.target.value}`) });
  const shown = table({
    caption: "Chargeback by tenant",
    key: (line) => line.tenant ?? "all",
    empty: "No tenant used tokens in this month.",
    columns: [
      { name: "Tenant", cell: (line) => (line.tenant ? tenantLink(line.tenant) : h("strong", {}, "All")) },
      { name: "Organisation", cell: (line) => (line.organisation ? named(line.organisation) : "") },
      { name: "Requests", class: "number", cell: (line) => count(line.requests) },
      { name: "Prompt tokens", class: "number", cell: (line) => amount(line.prompt_tokens) },
      { name: "Cached", class: "number", cell: (line) => amount(line.cached_tokens) },
      { name: "Output tokens", class: "number", cell: (line) => amount(line.output_tokens) },
      { name: "Compute time", class: "number", cell: (line) => duration(1000 * (line.gpu_seconds ?? 0)) },
      { name: "Spend", class: "number", cell: (line) => money(line.cost) },
    ],
  });
  shown.update(found.tenants.length ? [...found.tenants, found.total] : []);
  const file = h("a", { class: "button", href: `${ROOT}/admin/v1/chargeback${query({ month: chosen, format: "csv" })}`, download: `chargeback-${chosen}.csv` }, "As CSV");
  return card(null, h("div", { class: "row-head" }, h("h2", {}, "Chargeback"), h("div", { class: "actions" }, h("div", { class: "month" }, picker), file)), shown.element);
}

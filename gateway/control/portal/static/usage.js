// What the tenant has used and spent, and its limits.

import { get } from "./console/api.js";
import { fill, h, named } from "./console/dom.js";
import { amount, count } from "./console/format.js";
import { every } from "./console/live.js";
import { money } from "./console/parts/money.js";
import { card, figure, pageHead } from "./console/parts/pieces.js";
import { limitList, usageCard } from "./console/parts/usage.js";
import { caller } from "./account.js";

const EVERY_MS = 10_000;
const TOTAL_EVERY_MS = 30_000;

export async function usage(root, { signal }) {
  const { tenant, timezone } = caller();
  const month = h("dl", { class: "figures" });
  const limits = h("div");
  const past = usageCard("/usage", signal);
  root.append(
    pageHead("Usage", h("span", {}, "Of all keys of ", named(tenant), `. Days begin in the zone ${timezone}.`)),
    card("This month", month),
    card("Limits of this key and its tenant", limits),
    past.element);
  await Promise.all([
    past.read(),
    every(EVERY_MS, signal, async () => fill(limits, limitList((await get("/limits", {}, signal)).limits))),
    every(TOTAL_EVERY_MS, signal, async () => fill(month, ...figures((await get("/usage", { from: `${today(timezone).slice(0, 8)}01` }, signal)).total))),
  ]);
}

/** Today's date in a time zone; that of Canada's English is YYYY-MM-DD. */
const today = (timeZone) => new Intl.DateTimeFormat("en-CA", { timeZone, year: "numeric", month: "2-digit", day: "2-digit" }).format(new Date());

const figures = (total) => [
  figure("Spend", money(total.cost ?? 0)),
  figure("Requests", count(total.requests)),
  figure("Prompt tokens", amount(total.prompt_tokens), { detail: `${amount(total.cached_tokens)} of them cached` }),
  figure("Output tokens", amount(total.output_tokens)),
];

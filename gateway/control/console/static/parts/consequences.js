// What a change to a tenant stops, in one sentence; null if it stops nothing. Forms ask before they send such a change.

import { amount, words } from "../format.js";
import { isMoney, money } from "./money.js";

/** Limits whose figure 0 refuses everything; the others, such as `queued_requests`, stop only a part. */
const PARTS = new Map([
  ["queued_requests", "requests that would have to wait"],
  ["enqueued_batch_tokens", "new batches"],
]);

/**
 * `after`: the new figures by name, `before` those until now, `shadow` the names that are only counted. `used`: what is
 * used of each now. `what`: whose requests, such as `requests of acme`.
 */
export function ofLimits(what, before, after, { shadow = [], used = {} } = {}) {
  const stopped = Object.entries(after).filter(([name, value]) => typeof value === "number" && !shadow.includes(name)
    && (before[name] === undefined || value < before[name]) && (value === 0 || value <= (used[name] ?? -1)));
  if (!stopped.length) return null;
  const [name, value] = stopped.find(([, figure]) => figure === 0) ?? stopped[0];
  const told = isMoney(name) ? money : amount;
  const stops = PARTS.has(name) ? `${PARTS.get(name)} (${what})` : what;
  return value === 0
    ? `With ${words(name)} at 0, all ${stops} are refused from now on, on every gateway.`
    : `${told(used[name])} ${words(name)} are used already: all ${stops} are refused until fewer than ${told(value)} are used.`;
}

/** `values`: the settings form's. A lane or model that is taken away is refused from the next request on. */
export function ofSettings(tenant, { lanes, models }) {
  const lost = tenant.lanes.filter((lane) => !lanes.includes(lane));
  if (lost.length) return `Requests of ${tenant.id} in the ${lost.join(" and the ")} lane are refused with 403 lane_not_allowed from now on.`;
  const gone = models && (tenant.models === null || tenant.models.some((each) => !models.includes(each)));
  return gone ? `Requests of ${tenant.id} for any model but ${models.join(", ")} are refused with 403 model_not_allowed from now on.` : null;
}

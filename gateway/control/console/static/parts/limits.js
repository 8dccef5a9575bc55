// All limits in display order, with their units and form fields.

import { words } from "../format.js";
import { field } from "./dialog.js";
import { currencyName, isMoney } from "./money.js";

export const LIMITS = new Map([
  ["requests_per_minute", { label: "Requests per minute", unit: "requests in any 60 seconds" }],
  ["tokens_per_minute", { label: "Tokens per minute", unit: "prompt and output, in any 60 seconds" }],
  ["input_tokens_per_minute", { label: "Input tokens per minute", unit: "in any 60 seconds" }],
  ["output_tokens_per_minute", { label: "Output tokens per minute", unit: "in any 60 seconds" }],
  ["tokens_per_day", { label: "Tokens per day", unit: "calendar day in the tenant's zone" }],
  ["tokens_per_month", { label: "Tokens per month", unit: "calendar month in the tenant's zone" }],
  ["spend_per_day", { label: "Spend per day", unit: "of a calendar day in the tenant's zone" }],
  ["spend_per_month", { label: "Spend per month", unit: "of a calendar month in the tenant's zone" }],
  ["concurrent_requests", { label: "Concurrent requests", unit: "at once" }],
  ["queued_requests", { label: "Queued requests", unit: "waiting at once" }],
  ["max_prompt_tokens", { label: "Longest prompt", unit: "tokens of one request" }],
  ["max_output_tokens", { label: "Longest output", unit: "tokens of one request" }],
  ["enqueued_batch_tokens", { label: "Tokens in open batches", unit: "prompts and output of lines not ended" }],
]);

/** The form field of a limit, in its unit: money in the currency. */
export function limitField(name, value) {
  const { label = words(name), unit = null } = LIMITS.get(name) ?? {};
  const type = isMoney(name) ? "money" : "number";
  return field({ name: `limits.${name}`, label, type, value, hint: isMoney(name) ? `in ${currencyName()}, ${unit}` : unit });
}

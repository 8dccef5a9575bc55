// All limits in display order, with their units.

export const LIMITS = new Map([
  ["requests_per_minute", { label: "Requests per minute", unit: "requests in any 60 seconds" }],
  ["tokens_per_minute", { label: "Tokens per minute", unit: "prompt and output, in any 60 seconds" }],
  ["input_tokens_per_minute", { label: "Input tokens per minute", unit: "in any 60 seconds" }],
  ["output_tokens_per_minute", { label: "Output tokens per minute", unit: "in any 60 seconds" }],
  ["tokens_per_day", { label: "Tokens per day", unit: "calendar day in the tenant's zone" }],
  ["tokens_per_month", { label: "Tokens per month", unit: "calendar month in the tenant's zone" }],
  ["spend_per_day", { label: "Spend per day", unit: "billionths of the currency: 1,000,000,000 is one" }],
  ["spend_per_month", { label: "Spend per month", unit: "billionths of the currency: 1,000,000,000 is one" }],
  ["concurrent_requests", { label: "Concurrent requests", unit: "at once" }],
  ["queued_requests", { label: "Queued requests", unit: "waiting at once" }],
  ["max_prompt_tokens", { label: "Longest prompt", unit: "tokens of one request" }],
  ["max_output_tokens", { label: "Longest output", unit: "tokens of one request" }],
  ["enqueued_batch_tokens", { label: "Tokens in open batches", unit: "prompts and output of lines not ended" }],
]);

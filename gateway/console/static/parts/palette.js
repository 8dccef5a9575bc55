// Colours of what is told apart by colour: tenants by turns, lanes and states by name.

import { colour } from "./chart.js";

const HUES = 8;
const STATES = {
  free: "kv-free", running: "good", active: "good", prefill: "info", decode: "good", cached: "kv-cached", prefix: "kv-cached",
  paused: "warn", preempted: "warn", swapped: "warn", waiting: "info", copying: "kv-copy", clean: "accent", shared: "accent",
  fenced: "kv-copy", held: "kv-copy",
};

export const tenantColour = (index) => (index < 0 ? "kv-free" : `hue-${index % HUES}`);
export const laneColour = (lane) => (lane === "latency" ? "latency" : lane === "throughput" ? "throughput" : "kv-free");
export const stateColour = (state) => STATES[state] ?? "kv-cached";

/** Colours looked up once for a drawing, and again where the theme has changed. */
export function colours() {
  const found = new Map();
  return (name) => found.get(name) ?? found.set(name, colour(name)).get(name);
}

// Colours: tenants in rotation, lanes and states by name.

import { colour } from "./chart.js";

const HUES = 8;

/** Colour and meaning of each block state. `waiting` blocks are left in place by a preemption. */
export const STATES = {
  free: ["kv-free", "free"],
  running: ["good", "held by a sequence that runs"],
  waiting: ["warn", "held by a sequence that was stopped"],
  clean: ["accent", "held, with a copy in host memory: taking it costs nothing"],
  cached: ["kv-cached", "idle, with a prefix that may be asked for again"],
  swapped: ["kv-copy", "in host memory, of a sequence that was swapped out"],
  copy: ["hue-7", "in host memory, a copy of a block of the pool"],
};

const stateColour = (state) => STATES[state]?.[0] ?? "kv-cached";
const laneColour = (lane) => (lane === "latency" ? "latency" : lane === "throughput" ? "throughput" : "kv-cached");

/** A block's colour by tenant (its position), lane or state. */
export function blockColour(mode, { tenant, lane, state }) {
  if (state === "free") return "kv-free";
  if (mode === "tenant") return tenant < 0 ? "kv-cached" : `hue-${tenant % HUES}`;
  return mode === "lane" ? laneColour(lane) : stateColour(state);
}

/** Resolves colours once per drawing, and again when the theme changes. */
export function colours() {
  const found = new Map();
  return (name) => found.get(name) ?? found.set(name, colour(name)).get(name);
}

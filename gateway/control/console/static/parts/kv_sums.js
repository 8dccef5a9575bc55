// Sums over a map of KV blocks: blocks by holder, and blocks in use.

import { count, percent, plural } from "../format.js";

export const stateOf = (run, map) => map.states[run[3]] ?? "free";

/** States of blocks not in use. `cached` ones keep a prefix until the room is needed. `clean` ones, of a waiting sequence, are in use. */
const UNUSED = new Set(["free", "cached"]);

/** Blocks by tenant, lane and state, largest first, free ones last. */
export function grouped(map, where) {
  const found = new Map();
  for (const run of map.runs) {
    const [blocks, tenantPlace, lanePlace] = run;
    const [tenant, lane, state] = [map.tenants[tenantPlace] ?? null, map.lanes[lanePlace] ?? null, stateOf(run, map)];
    const key = JSON.stringify([tenant, lane, state, where]);
    const row = found.get(key) ?? found.set(key, { key, tenant, tenantPlace, lane, state, where, blocks: 0 }).get(key);
    row.blocks += blocks;
  }
  const isFree = ({ state }) => Number(state === "free");
  return [...found.values()].map((row) => ({ ...row, share: row.blocks / map.blocks })).sort((a, b) => isFree(a) - isFree(b) || b.blocks - a.blocks);
}

const blocksOf = (rows, takes) => rows.filter(takes).reduce((all, { blocks }) => all + blocks, 0);

/** The usage of the device's pool as a sentence. */
export function inUse(map, rows) {
  const used = blocksOf(rows, ({ state, where }) => where === "device" && !UNUSED.has(state));
  const cached = blocksOf(rows, ({ state, where }) => where === "device" && state === "cached");
  const kept = cached ? `, ${count(cached)} cached` : "";
  return `${count(used)} of ${plural(map.blocks, "block")} in use (${percent(map.blocks ? used / map.blocks : null)})${kept}, ${count(map.block_size)} tokens each`;
}

/** A row's legend entry; host memory is not part of the pool. */
export function labelOf({ tenant, lane, state, where }, mode) {
  if (state === "free") return where === "host" ? "free in host memory" : "free";
  return { tenant: tenant || "others, cached", lane: lane ?? "no lane, cached", state }[mode];
}

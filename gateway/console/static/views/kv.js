// The KV pool of each worker as a map of blocks: by tenant, lane or state, moving as it happens; and the same as a table.

import { getIfThere } from "../api.js";
import { fill, h, keyed, named } from "../dom.js";
import { count, percent, plural } from "../format.js";
import { follow } from "../live.js";
import { kvMap, stateOf } from "../parts/kv_map.js";
import { laneColour, stateColour, tenantColour } from "../parts/palette.js";
import { laneTag, loading, missing, pageHead, segmented, stateBadge, tenantLink } from "../parts/pieces.js";
import { table } from "../parts/table.js";

const MODES = [["tenant", "Tenant"], ["lane", "Lane"], ["state", "State"]];

export async function kv(root, { signal }) {
  let mode = "tenant";
  let last = [];
  const pools = new Map();
  const place = h("div", { class: "pools" });
  const wait = loading();
  const choice = segmented("Colour by", MODES, mode, (chosen) => {
    mode = chosen;
    pools.forEach((pool) => pool.show(mode));
    show(last);
  });
  root.append(pageHead("KV blocks", "Every block of each worker's pool, and whose it is. A block that changes hands flashes.", h("span", { class: "muted" }, "Colour by"), choice), wait, place);

  function show(maps) {
    last = maps;
    wait.remove();
    keyed(place, maps, (map) => map.worker, (map) => {
      pools.set(map.worker, pool(signal));
      return pools.get(map.worker).element;
    }, (_, map) => pools.get(map.worker).update(map, mode));
    pools.forEach((each) => each.placed());
    if (!maps.length) fill(place, h("p", { class: "card empty" }, "No worker has told of its blocks yet."));
  }
  const first = await getIfThere("/kv", {}, signal);
  if (first === null) {
    wait.remove();
    fill(place, missing("the map of KV blocks"));
    return;
  }
  show(mapsOf(first));
  follow("kv", signal, (told) => show(mapsOf(told)));
}

/** The maps of all workers, whichever way they are listed. */
const mapsOf = (told) => (Array.isArray(told) ? told : (told.data ?? told.workers ?? (told.runs ? [told] : [])));

/** One worker's pool. */
function pool(signal) {
  const title = h("h2");
  const sums = h("p", { class: "muted" });
  const under = h("p", { class: "under muted" }, "Point at a block to see whose it is.");
  const legend = h("ul", { class: "kv-legend" });
  const drawing = kvMap(signal, (found) => fill(under, ...(found ? tellBlock(found) : ["Point at a block to see whose it is."])));
  const rows = table({
    caption: "Blocks by tenant, lane and state",
    key: (row) => row.key,
    empty: "Every block is free.",
    columns: [
      { name: "Tenant", cell: (row) => (row.tenant ? tenantLink(row.tenant) : h("span", { class: "muted" }, "nobody's")) },
      { name: "Lane", cell: (row) => (row.lane ? laneTag(row.lane) : "–") },
      { name: "State", cell: (row) => stateBadge(row.state) },
      { name: "Blocks", class: "number", cell: (row) => count(row.blocks) },
      { name: "Share", class: "number", cell: (row) => percent(row.share) },
    ],
  });
  let isPlaced = false;
  const element = h("section", { class: "card pool" }, h("header", {}, title, sums),
    h("div", { class: "pool-body" }, h("div", { class: "pool-map" }, h("div", { class: "kv-place" }, drawing.canvas), under), h("div", { class: "pool-side" }, legend, rows.element)));
  return {
    element,
    show: drawing.show,
    placed() {
      if (!isPlaced) drawing.placed();
      isPlaced = true;
    },
    update(map, mode) {
      const found = grouped(map);
      const used = found.filter(({ state }) => state !== "free").reduce((all, { blocks }) => all + blocks, 0);
      fill(title, named(map.worker, "id"));
      const text = `${count(used)} of ${plural(map.blocks, "block")} in use (${percent(map.blocks ? used / map.blocks : null)}), ${count(map.block_size)} tokens each`;
      fill(sums, text);
      drawing.canvas.setAttribute("aria-label", `Map of the blocks of ${map.worker}: ${text}. The table beside it says the same.`);
      rows.update(found);
      drawing.update(map);
      fill(legend, ...legendOf(map, found, mode));
    },
  };
}

function tellBlock({ first, run, map }) {
  const tenant = map.tenants[run[1]];
  return [`Block ${count(first)}: ${stateOf(run, map)}`, tenant ? [", ", named(tenant)] : null, map.lanes[run[2]] ? `, ${map.lanes[run[2]]} lane` : null].flat();
}

/** How many blocks each tenant holds in each lane and state, the most at the head. */
function grouped(map) {
  const found = new Map();
  for (const run of map.runs) {
    const [blocks, tenantIndex, laneIndex] = run;
    const [tenant, lane, state] = [map.tenants[tenantIndex] ?? null, map.lanes[laneIndex] ?? null, stateOf(run, map)];
    const key = JSON.stringify([tenant, lane, state]);
    const row = found.get(key) ?? found.set(key, { key, tenant, tenantIndex, lane, state, blocks: 0 }).get(key);
    row.blocks += blocks;
  }
  return [...found.values()].map((row) => ({ ...row, share: map.blocks ? row.blocks / map.blocks : 0 })).sort((a, b) => b.blocks - a.blocks);
}

function legendOf(map, rows, mode) {
  const sums = new Map();
  for (const row of rows) {
    const [label, hue] = row.state === "free" ? ["free", "kv-free"]
      : mode === "tenant" ? [row.tenant ?? "nobody's, cached", row.tenant ? tenantColour(row.tenantIndex) : "kv-cached"]
        : mode === "lane" ? [row.lane ?? "no lane, cached", row.lane ? laneColour(row.lane) : "kv-cached"]
          : [row.state, stateColour(row.state)];
    const known = sums.get(label) ?? { hue, blocks: 0 };
    sums.set(label, { hue, blocks: known.blocks + row.blocks });
  }
  return [...sums].map(([label, { hue, blocks }]) => h("li", {}, h("span", { class: `dot c-${hue}` }), named(label), h("span", { class: "muted" }, ` ${count(blocks)}`)));
}

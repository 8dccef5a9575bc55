// Each worker's KV pool as a live map of blocks, by tenant, lane or state, and as a table.

import { fill, h, keyed, named } from "../dom.js";
import { count, percent } from "../format.js";
import { follow } from "../live.js";
import { kvMap } from "../parts/kv_map.js";
import { grouped, inUse, labelOf, stateOf } from "../parts/kv_sums.js";
import { tenantLink } from "../parts/links.js";
import { STATES, blockColour } from "../parts/palette.js";
import { laneTag, missing, pageHead, segmented } from "../parts/pieces.js";
import { table } from "../parts/table.js";

const MODES = [["tenant", "Tenant"], ["lane", "Lane"], ["state", "State"]];
const HINT = "Point at a block to see its tenant.";

export async function kv(root, { signal }) {
  let mode = "tenant";
  let last = [];
  const pools = new Map();
  const place = h("div", { class: "pools" });
  const wait = h("p", { class: "card empty", "aria-busy": "true" }, "Loading the workers' blocks…");
  const choice = segmented("Colour by", MODES, mode, (chosen) => {
    mode = chosen;
    show(last);
  });
  root.append(pageHead("KV blocks", "Every block of each worker's pool, and its tenant. A block flashes when it changes hands.", h("span", { class: "muted" }, "Colour by"), choice), wait, place);

  function show(maps) {
    last = maps;
    wait.hidden = maps.length > 0;
    keyed(place, maps, (map) => map.worker, (map) => {
      pools.set(map.worker, pool(signal));
      return pools.get(map.worker).element;
    }, (_, map) => pools.get(map.worker).update(map, mode));
    pools.forEach((each) => each.placed());
  }
  function unable() {
    wait.hidden = true;
    fill(place, missing("the map of KV blocks"));
  }
  follow("kv", signal, (told) => (told === null ? unable() : show(told.workers)));
}

/** Tenants that share cached prefixes are reported as `group NAME`. */
const isGroup = (name) => name?.includes(" ");

/** The host pool's map in the format of the device pool's. */
const hostOf = (map) => ({ ...map, blocks: map.host_blocks, runs: map.host_runs });

function pool(signal) {
  const title = h("h2");
  const sums = h("p", { class: "muted" });
  const under = h("p", { class: "under muted" }, HINT);
  const legend = h("ul", { class: "kv-legend" });
  const tell = (found) => fill(under, ...(found ? tellBlock(found) : [HINT]));
  const device = kvMap(signal, tell);
  const host = kvMap(signal, tell);
  const hostPart = h("div", { class: "kv-host" }, h("h3", {}, "Host memory"), h("div", { class: "kv-place" }, host.canvas));
  const rows = table({
    caption: "Blocks by tenant, lane and state",
    key: (row) => row.key,
    empty: "Every block is free.",
    columns: [
      { name: "Tenant", cell: (row) => (isGroup(row.tenant) ? named(row.tenant) : row.tenant ? tenantLink(row.tenant) : h("span", { class: "muted" }, row.state === "free" ? "–" : "others")) },
      { name: "Lane", cell: (row) => (row.lane ? laneTag(row.lane) : "–") },
      { name: "State", cell: (row) => h("span", { title: STATES[row.state]?.[1] ?? null }, row.state) },
      { name: "Where", cell: (row) => row.where },
      { name: "Blocks", class: "number", cell: (row) => count(row.blocks) },
      { name: "Share", class: "number", cell: (row) => percent(row.share) },
    ],
  });
  let isPlaced = false;
  const element = h("section", { class: "card pool" }, h("header", {}, title, sums), legend,
    h("div", { class: "pool-body" }, h("div", { class: "pool-map" }, h("div", { class: "kv-place" }, device.canvas), hostPart, under), h("div", { class: "pool-side" }, rows.element)));
  return {
    element,
    placed() {
      if (!isPlaced) [device, host].forEach((each) => each.placed());
      isPlaced = true;
    },
    update(map, mode) {
      const found = [...grouped(map, "device"), ...grouped(hostOf(map), "host")];
      const text = inUse(map, found);
      fill(title, named(map.worker, "id"));
      fill(sums, text);
      rows.update(found);
      hostPart.hidden = map.host_blocks === 0;
      for (const [drawing, told, what] of [[device, map, "blocks"], [host, hostOf(map), "host memory"]]) {
        drawing.canvas.setAttribute("aria-label", `Map of the ${what} of ${map.worker}. ${text}. The table beside it says the same.`);
        drawing.show(mode);
        if (told.blocks) drawing.update(told);
      }
      fill(legend, ...legendOf(found, mode));
    },
  };
}

function tellBlock({ first, run, map }) {
  const [tenant, lane, state] = [map.tenants[run[1]], map.lanes[run[2]], stateOf(run, map)];
  return [`Block ${count(first)}: ${STATES[state]?.[1] ?? state}`, ...(tenant ? [", ", named(tenant)] : []), lane ? `, ${lane} lane` : ""];
}

function legendOf(rows, mode) {
  const sums = new Map();
  for (const row of rows) {
    const label = labelOf(row, mode);
    const known = sums.get(label) ?? { hue: blockColour(mode, { ...row, tenant: row.tenant ? row.tenantPlace : -1 }), blocks: 0 };
    sums.set(label, { ...known, blocks: known.blocks + row.blocks });
  }
  return [...sums].map(([label, { hue, blocks }]) => h("li", {}, h("span", { class: `dot c-${hue}` }), named(label), h("span", { class: "muted" }, count(blocks))));
}

// A worker's KV pool as a map on a canvas: one cell per block, or per several if there are many.

import { h } from "../dom.js";
import { stateOf } from "./kv_sums.js";
import { blockColour, colours } from "./palette.js";

const LARGEST_CELL = 30;
const SMALLEST_CELL = 4;
const TALLEST = 460;
const FLASH_MS = 700;
const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** The run of each block, by position. */
function unrolled(map) {
  const cells = new Int32Array(map.blocks).fill(-1);
  let at = 0;
  map.runs.forEach(([count], i) => {
    cells.fill(i, at, at + count);
    at += count;
  });
  return cells;
}

const identity = (run, map) => (run ? `${map.tenants[run[1]] ?? ""}/${map.lanes[run[2]] ?? ""}/${stateOf(run, map)}` : "");

/** `ontell(found)` is called with the block under the pointer. */
export function kvMap(signal, ontell) {
  const canvas = h("canvas", { class: "kv-canvas", role: "img" });
  let map = null;
  let cells = null;
  let mode = "tenant";
  let shape = null;
  let changed = new Map();
  let frame = 0;
  let paint = colours();

  function layOut() {
    const width = Math.max(120, Math.floor(canvas.parentElement?.clientWidth ?? 600));
    for (let size = LARGEST_CELL; ; size -= 1) {
      const columns = Math.floor(width / size);
      const rows = Math.ceil(map.blocks / columns);
      if (rows * size <= TALLEST || size === SMALLEST_CELL) {
        const most = columns * Math.floor(TALLEST / size);
        const each = Math.max(1, Math.ceil(map.blocks / most));
        return { size, columns, each, count: Math.ceil(map.blocks / each), width };
      }
    }
  }
  function draw(now = performance.now()) {
    frame = 0;
    if (!map || signal.aborted) return;
    const { size, columns, each, count } = shape;
    const rows = Math.ceil(count / columns);
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [columns * size, rows * size];
    if (canvas.width !== width * scale || canvas.height !== height * scale) {
      canvas.width = width * scale;
      canvas.height = height * scale;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const brush = canvas.getContext("2d");
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.clearRect(0, 0, width, height);
    const gap = size > 6 ? 2 : 1;
    for (let cell = 0; cell < count; cell += 1) {
      const run = map.runs[cells[cell * each]];
      const [x, y] = [(cell % columns) * size, Math.floor(cell / columns) * size];
      brush.fillStyle = paint(run ? blockColour(mode, { tenant: map.tenants[run[1]] ? run[1] : -1, lane: map.lanes[run[2]], state: stateOf(run, map) }) : "kv-free");
      brush.fillRect(x, y, size - gap, size - gap);
      const since = changed.get(cell);
      if (since === undefined) continue;
      const age = (now - since) / FLASH_MS;
      if (age >= 1) changed.delete(cell);
      else {
        brush.globalAlpha = 0.75 * (1 - age);
        brush.fillStyle = paint("flash");
        brush.fillRect(x, y, size - gap, size - gap);
        brush.globalAlpha = 1;
      }
    }
    if (changed.size) soon();
  }
  const soon = () => (frame ||= requestAnimationFrame(draw));

  function update(next) {
    const fresh = unrolled(next);
    const isSame = map && map.blocks === next.blocks;
    if (isSame && !isCalm()) {
      const now = performance.now();
      const { each, count } = shape;
      for (let cell = 0; cell < count; cell += 1) {
        const at = cell * each;
        if (identity(map.runs[cells[at]], map) !== identity(next.runs[fresh[at]], next)) changed.set(cell, now);
      }
    }
    map = next;
    cells = fresh;
    if (!isSame) shape = layOut();
    soon();
  }
  function tell(event) {
    if (!map) return;
    const box = canvas.getBoundingClientRect();
    const [column, row] = [Math.floor((event.clientX - box.left) / shape.size), Math.floor((event.clientY - box.top) / shape.size)];
    const cell = row * shape.columns + column;
    const run = column < shape.columns && cell < shape.count ? map.runs[cells[cell * shape.each]] : null;
    ontell(run ? { first: cell * shape.each, run, map } : null);
  }
  canvas.addEventListener("pointermove", tell);
  canvas.addEventListener("pointerleave", () => ontell(null));
  const sized = new ResizeObserver(() => {
    if (!map) return;
    shape = layOut();
    changed = new Map();
    soon();
  });
  const rethemed = () => {
    paint = colours();
    soon();
  };
  document.addEventListener("themechange", rethemed);
  signal.addEventListener("abort", () => {
    sized.disconnect();
    cancelAnimationFrame(frame);
    document.removeEventListener("themechange", rethemed);
  });
  return {
    canvas,
    update,
    /** Call once the canvas is in the document. */
    placed: () => sized.observe(canvas.parentElement),
    show(by) {
      mode = by;
      soon();
    },
  };
}

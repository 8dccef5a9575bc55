// The points of a chart: the gateway's history, followed by live data if the period ends now.

import { edges } from "./range.js";

const MOST_LIVE = 900;

export class History {
  #kept = [];
  #live = [];
  #step = 1;

  /** `range`: the shown period, as `rangeOf` returns it. */
  constructor(range) {
    this.range = range;
  }

  /** Sets the gateway's history, oldest first. */
  replace({ points, step_s: step }) {
    this.#kept = points;
    this.#step = step;
    const last = points.at(-1)?.at ?? 0;
    this.#live = this.#live.filter(({ at }) => at > last);
  }

  /** Adds the current overview. */
  add(overview) {
    if (this.range.to !== null) return;
    const lanes = Object.fromEntries(overview.lanes.map((lane) => [lane.lane, lane]));
    const point = { at: overview.at, lanes, refusals: overview.refusals ?? null, kv_used: kvUsed(overview.workers), isNow: true };
    if (overview.at > (this.#live.at(-1)?.at ?? 0)) this.#live.push(point);
    if (this.#live.length > MOST_LIVE) this.#live.shift();
  }

  points() {
    const last = this.#kept.at(-1)?.at ?? 0;
    const fresh = this.#kept.length ? this.#live.slice(-1).filter(({ at }) => at > last) : this.#live;
    const [from] = edges(this.range);
    return [...this.#kept, ...fresh].filter(({ at }) => at >= from - this.#step);
  }

  /** The axis of a chart of all points. */
  axis() {
    const [from, to] = edges(this.range);
    return { from, to, step: this.#kept.length ? this.#step : 1 };
  }
}

export function kvUsed(workers) {
  const total = workers.reduce((all, each) => all + each.blocks_total, 0);
  const free = workers.reduce((all, each) => all + each.blocks_free, 0);
  return total ? (total - free) / total : null;
}

// The points of a chart: the gateway's history, followed by live data.

const SPAN_S = { "15m": 900, day: 86_400, month: 31 * 86_400 };
const MOST_LIVE = 900;

export class History {
  #kept = [];
  #live = [];

  constructor(span) {
    /** The shown period in seconds. */
    this.span = SPAN_S[span];
  }

  /** Sets the gateway's history, oldest first. */
  replace(points) {
    this.#kept = points;
    const last = points.at(-1)?.at ?? 0;
    this.#live = this.#live.filter(({ at }) => at > last);
  }

  /** Adds the current overview. */
  add(overview) {
    const lanes = Object.fromEntries(overview.lanes.map((lane) => [lane.lane, lane]));
    const point = { at: overview.at, lanes, refusals: overview.refusals ?? null, kv_used: kvUsed(overview.workers), isNow: true };
    if (overview.at > (this.#live.at(-1)?.at ?? 0)) this.#live.push(point);
    if (this.#live.length > MOST_LIVE) this.#live.shift();
  }

  points() {
    const last = this.#kept.at(-1)?.at ?? 0;
    const fresh = this.#kept.length ? this.#live.slice(-1).filter(({ at }) => at > last) : this.#live;
    const all = [...this.#kept, ...fresh];
    const since = (all.at(-1)?.at ?? 0) - this.span;
    return all.filter(({ at }) => at >= since);
  }
}

export function kvUsed(workers) {
  const total = workers.reduce((all, each) => all + each.blocks_total, 0);
  const free = workers.reduce((all, each) => all + each.blocks_free, 0);
  return total ? (total - free) / total : null;
}

// A stream's states as one bar, each with its duration.

import { fill, h } from "../dom.js";
import { duration } from "../format.js";

const TICK_MS = 300;
const LAST = ["done", "refused", "failed", "stopped"];

export function timeline() {
  const bar = h("div", { class: "timeline", role: "img", "aria-label": "Nothing sent yet" });
  let spans = [];
  let begun = 0;
  let ticking = 0;
  const made = {
    element: bar,
    state: null,
    begin() {
      spans = [];
      begun = performance.now();
      made.state = null;
      clearInterval(ticking);
      ticking = setInterval(draw, TICK_MS); // the current state keeps growing
      fill(bar);
    },
    /** Enters a state. */
    enter(state, at) {
      if (state === made.state) return;
      const last = spans.at(-1);
      if (last) last.until = at;
      spans.push({ state, from: at, until: null });
      made.state = state;
      if (LAST.includes(state)) clearInterval(ticking);
      draw();
    },
  };
  function draw() {
    const total = Math.max(1, performance.now() - begun);
    const shown = spans.filter(({ from, until }) => (until ?? total) - from > 0);
    fill(bar, ...shown.map(({ state, from, until }) => {
      const part = h("i", { class: `in-${state}`, title: `${state}: ${duration((until ?? total) - from)}` });
      part.style.flexGrow = String(((until ?? total) - from) / total);
      return part;
    }));
    bar.setAttribute("aria-label", shown.map(({ state, from, until }) => `${state} ${duration((until ?? total) - from)}`).join(", "));
  }
  return made;
}

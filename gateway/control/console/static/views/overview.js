// The overview: lanes against their targets, rejections, tenants and workers, now and over time.

import { getIfThere } from "../api.js";
import { fill, h } from "../dom.js";
import { count, duration } from "../format.js";
import { every, follow } from "../live.js";
import { History } from "../parts/history.js";
import { segmented, loading, pageHead } from "../parts/pieces.js";
import { lanePanel } from "../parts/lane_panel.js";
import { systemPanel } from "../parts/system_panel.js";

const SPANS = [["15m", "15 minutes"], ["day", "Day"], ["month", "Month"]];
const READ_EVERY_MS = { "15m": 10_000, day: 60_000, month: 300_000 };
const DEFAULT = "15m";

export async function overview(root, { fields, signal }) {
  const span = SPANS.some(([name]) => name === fields.get("span")) ? fields.get("span") : DEFAULT;
  const history = new History(span);
  const alarm = h("div", { class: "alarms", "aria-live": "polite" });
  const note = h("p", { class: "muted history-note" });
  const lanes = h("div", { class: "lane-panels" });
  const system = systemPanel(signal);
  const panels = new Map();
  const wait = loading();
  const choice = segmented("Time shown", SPANS, span, (chosen) => (location.hash = `#/overview${chosen === DEFAULT ? "" : `?span=${chosen}`}`));
  root.append(pageHead("Overview", null, choice), alarm, wait, lanes, system.element, note);

  function draw() {
    const points = history.points();
    const from = Math.max(points[0]?.at ?? 0, (points.at(-1)?.at ?? 0) - history.span);
    for (const [lane, panel] of panels) panel.plot(points, lane, from);
    system.plot(points, from);
  }
  follow("overview", signal, (now) => {
    wait.remove();
    drawAlarms(alarm, now);
    for (const lane of now.lanes) {
      if (!panels.has(lane.lane)) {
        panels.set(lane.lane, lanePanel(lane.lane, signal));
        lanes.append(panels.get(lane.lane).element);
      }
      panels.get(lane.lane).update(lane);
    }
    system.update(now);
    history.add(now);
    draw();
  });
  await every(READ_EVERY_MS[span], signal, async () => {
    const read = await getIfThere("/history", { span }, signal);
    if (read) history.replace(read.points);
    else fill(note, "This gateway keeps no history: the charts start when this page was opened. A newer gateway keeps a day at 10 seconds and a month at 5 minutes.");
    draw();
  });
}

/** Conditions that need attention, one sentence each. */
function drawAlarms(place, { lanes, workers }) {
  const found = [];
  if (!workers.length) found.push("There are no workers: requests are rejected with 503 until one starts.");
  else if (workers.every((worker) => worker.draining)) found.push("Every worker is draining: no new requests are taken.");
  for (const { lane, ttft_ms: ttft, ttft_target_ms: target, queued, oldest_wait_ms: oldest } of lanes) {
    if (ttft?.p95 > target) found.push(`In the ${lane} lane one first token in twenty takes ${duration(ttft.p95)} or longer; the target is ${duration(target)}.`);
    else if (queued > 0 && oldest > target) found.push(`In the ${lane} lane ${count(queued)} wait, the oldest for ${duration(oldest)}; the target is ${duration(target)}.`);
  }
  const text = found.join(" ");
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  fill(place, ...found.map((sentence) => h("p", { class: "alarm" }, sentence)));
}


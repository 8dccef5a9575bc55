// The overview: what needs attention, lanes against their targets, who pays, what runs out, and workers; then charts.

import { getIfThere } from "../api.js";
import { fill, h } from "../dom.js";
import { every, follow } from "../live.js";
import { alarmList } from "../parts/alarms.js";
import { budgetPanel } from "../parts/budget_panel.js";
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
  const alarms = alarmList();
  const note = h("p", { class: "muted history-note" });
  const lanes = h("div", { class: "lane-panels" });
  const system = systemPanel(signal);
  const budgets = budgetPanel(signal);
  const tables = h("div", { class: "system" }, ...budgets.elements, ...system.elements);
  const charts = h("div", { class: "lane-panels" }, system.plots);
  const panels = new Map();
  const wait = loading();
  const choice = segmented("Time shown", SPANS, span, (chosen) => (location.hash = `#/overview${chosen === DEFAULT ? "" : `?span=${chosen}`}`));
  root.append(pageHead("Overview", null, choice), alarms.element, wait, lanes, tables, charts, note);

  function draw() {
    const points = history.points();
    const from = Math.max(points[0]?.at ?? 0, (points.at(-1)?.at ?? 0) - history.span);
    for (const [lane, panel] of panels) panel.plot(points, lane, from);
    system.plot(points, from);
  }
  follow("store", signal, alarms.store);
  follow("overview", signal, (now) => {
    wait.remove();
    alarms.update(now.alarms ?? []);
    for (const lane of now.lanes) {
      if (!panels.has(lane.lane)) {
        panels.set(lane.lane, lanePanel(lane.lane, signal));
        lanes.append(panels.get(lane.lane).element);
        charts.insertBefore(panels.get(lane.lane).plots, system.plots);
      }
      panels.get(lane.lane).update(lane);
    }
    system.update(now);
    budgets.update(now);
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

// The overview: what needs attention, lanes against their targets, who pays, what runs out, and workers; then charts.

import { getIfThere, query } from "../api.js";
import { fill, h } from "../dom.js";
import { every, follow } from "../live.js";
import { alarmList } from "../parts/alarms.js";
import { budgetPanel } from "../parts/budget_panel.js";
import { History } from "../parts/history.js";
import { loading, pageHead } from "../parts/pieces.js";
import { edges, rangeOf, rangePicker, rangeQuery, readEvery, zoomed } from "../parts/range.js";
import { lanePanel } from "../parts/lane_panel.js";
import { systemPanel } from "../parts/system_panel.js";
import { tools } from "../session.js";

export async function overview(root, { fields, signal }) {
  const range = rangeOf(fields);
  const history = new History(range);
  const go = (chosen) => (location.hash = `#/overview${chosen.size ? `?${chosen}` : ""}`);
  const onzoom = (from, to) => go(zoomed(from, to));
  const alarms = alarmList();
  const note = h("p", { class: "muted history-note" });
  const lanes = h("div", { class: "lane-panels" });
  const system = systemPanel(range, signal, onzoom);
  const budgets = budgetPanel(signal);
  const tables = h("div", { class: "system" }, ...budgets.elements, ...system.elements);
  const charts = h("div", { class: "charts" }, system.plots);
  const panels = new Map();
  const wait = loading();
  root.append(pageHead("Overview"), alarms.element, wait, lanes, tables,
    h("div", { class: "page-head" }, h("h2", {}, "Over time"), h("div", { class: "actions" }, grafana(range), rangePicker(range, go))), charts, note);

  function draw() {
    const points = history.points();
    const axis = history.axis();
    for (const [lane, panel] of panels) panel.plot(points, lane, axis);
    system.plot(points, axis);
  }
  follow("store", signal, alarms.store);
  follow("overview", signal, (now) => {
    wait.remove();
    alarms.update(now.alarms ?? []);
    for (const lane of now.lanes) {
      if (!panels.has(lane.lane)) {
        panels.set(lane.lane, lanePanel(lane.lane, signal, onzoom));
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
  await every(readEvery(range), signal, async () => {
    const read = await getIfThere("/history", rangeQuery(range), signal);
    if (read) history.replace(read);
    else fill(note, "This gateway keeps no history: the charts start when this page was opened. A newer gateway keeps a day at 10 seconds and a month at 5 minutes.");
    draw();
  });
}

/** A link to the same period in Grafana, if one is configured. */
function grafana(range) {
  const { grafana: url } = tools();
  if (!url) return null;
  const [from, until] = edges(range).map((seconds) => Math.round(1000 * seconds));
  const period = query({ from, to: range.to === null ? "now" : until });
  return h("a", { class: "button", href: url.includes("?") ? `${url}&${period.slice(1)}` : url + period, target: "_blank", rel: "noreferrer" }, "Open in Grafana");
}

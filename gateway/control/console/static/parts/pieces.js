// Small parts shared by all views, free of what only operators have.

import { fill, h, named } from "../dom.js";
import { amount, percent, words } from "../format.js";
import { ApiError } from "../api.js";
import { isMoney, money } from "./money.js";

export const badge = (word, tone = "") => h("span", { class: `badge ${tone}` }, word);

export const laneTag = (lane) => h("span", { class: `lane-tag ${laneClass(lane)}` }, lane ?? "–");
/** The lane's name as a title. */
export const laneTitle = (lane) => h("span", { class: `lane-tag ${laneClass(lane)}` }, `${lane[0].toUpperCase()}${lane.slice(1)} lane`);
export const laneClass = (lane) => (lane === "latency" ? "is-latency" : lane === "throughput" ? "is-throughput" : "");

const TONES = {
  finished: "good", rejected: "bad", unavailable: "bad", lost: "bad",
  active: "good", serving: "good", running: "good", completed: "good", ok: "good", in_progress: "good", admitted: "good",
  suspended: "bad", revoked: "bad", expired: "bad", failed: "bad", refused: "bad", error: "bad",
  draining: "warn", preempted: "warn", paused: "warn", queued: "info", waiting: "info", validating: "info",
  finalizing: "info", cancelling: "warn", cancelled: "warn",
};
export const stateBadge = (state) => badge(words(state), TONES[state] ?? "");

/** A page's header. Its title takes the focus when the view opens. */
export function pageHead(title, note = null, ...actions) {
  const heading = h("h1", { tabindex: "-1" }, title);
  const said = note && h("p", { class: "note" }, note);
  return h("div", { class: "page-head" }, h("div", {}, heading, said), h("div", { class: "actions" }, ...actions));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), ...children);
}

export function button(label, onclick, { kind = "quiet", describes = null, ...rest } = {}) {
  const hidden = describes && h("span", { class: "hidden-label" }, " ", named(describes));
  return h("button", { type: "button", class: kind, onclick, ...rest }, label, hidden);
}

export const link = (href, ...children) => h("a", { href }, ...children);

/** A definition list of pairs of name and value. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined);
  return h("dl", { class: "facts" }, ...shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))));
}

/**
 * A bar with its label. `parts`: pairs of class and amount. A full bar is an alarm if it shows used capacity, and not
 * if it shows progress.
 */
export function meter(label, parts, total, isRoom = true) {
  const taken = parts.reduce((all, [, value]) => all + value, 0);
  const bar = h("div", { class: isRoom && total > 0 && taken >= total ? "bar full" : "bar", "aria-hidden": "true" });
  for (const [kind, value] of parts) {
    const part = h("i", { class: kind });
    part.style.width = `${total > 0 ? Math.min(100, (100 * value) / total) : 0}%`;
    bar.append(part);
  }
  return h("div", { class: "meter" }, bar, h("span", {}, label));
}

/** The used and reserved share of a limit; a limit of 0 is used up. */
export const shareOf = ({ limit, used = 0, reserved = 0 }) => (limit > 0 ? (used + reserved) / limit : 1);

export function limitMeter(name, limit) {
  const { used = 0, reserved = 0 } = limit;
  const told = isMoney(name) ? money : amount;
  const share = limit.limit > 0 ? percent((used + reserved) / limit.limit) : "–";
  const label = `${told(used)} used${reserved ? `, ${told(reserved)} reserved` : ""} of ${told(limit.limit)} (${share})`;
  return meter(label, [["used", used], ["reserved", reserved]], limit.limit);
}

export const isCounted = (name) => !name.startsWith("max_");

/** A figure with its name; `tone` is `good`, `warn` or `bad`. */
export function figure(name, value, { unit = null, tone = "", detail = null } = {}) {
  return h("div", { class: `figure ${tone}` },
    h("dt", {}, name),
    h("dd", {}, h("span", { class: "value" }, value), unit && h("small", {}, ` ${unit}`)),
    detail && h("dd", { class: "detail" }, detail));
}

/** A note on a feature that this gateway does not have. */
export function missing(what) {
  return h("p", { class: "card empty" }, `This gateway does not offer ${what} yet: it is older than this console. A newer gateway shows it here.`);
}

export function problem(error) {
  const text = error instanceof ApiError || error?.name === "Error" ? error.message : "The gateway did not answer in time.";
  return h("p", { class: "card error", role: "alert" }, text);
}

export const loading = () => h("p", { class: "empty", "aria-busy": "true" }, "Loading…");

/** A group of radio buttons. */
export function segmented(name, choices, chosen, onchange) {
  const group = h("fieldset", { class: "segmented" }, h("legend", { class: "hidden-label" }, name));
  for (const [value, label] of choices) {
    const input = h("input", { type: "radio", name: `seg-${name}`, value, checked: value === chosen, onchange: () => onchange(value) });
    group.append(h("label", {}, input, h("span", {}, label)));
  }
  return group;
}

/** A button that copies a text and confirms it. */
export function copyButton(text, label = "Copy") {
  const made = button(label, async () => {
    try {
      await navigator.clipboard.writeText(text);
      fill(made, "Copied");
    } catch {
      fill(made, "Select and copy it by hand");
    }
  });
  return made;
}

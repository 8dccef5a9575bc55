// A tenant's limits: value, usage, and whether each is enforced or in shadow mode.

import { change, get } from "../api.js";
import { fill, h, setText, toast } from "../dom.js";
import { words } from "../format.js";
import { every } from "../live.js";
import { ofLimits } from "../parts/consequences.js";
import { field, form } from "../parts/dialog.js";
import { card, isCounted, limitMeter } from "../parts/pieces.js";
import { mayChange } from "../session.js";
import { LIMITS, limitField } from "../parts/limits.js";
import { narrower } from "./tenant_narrower.js";

const EVERY_MS = 3000;

export async function limits(place, state) {
  const standing = new Map();
  const own = state.tenant.limits;
  const known = [...LIMITS.keys(), ...Object.keys(own).filter((name) => !LIMITS.has(name))];
  const rows = known.map((name) => row(name, own[name], state.tenant.shadow.includes(name), standing));
  const fields = rows.flatMap(({ figure, shadow }) => [figure, shadow]);
  if (mayChange()) {
    place.append(card("Limits", h("p", { class: "note" }, "Empty means no limit. A change applies from the next request on, on every gateway. “Only count” reports what a limit would reject, and rejects nothing."),
      limitForm(rows, fields, state)));
  } else {
    fields.forEach(({ element }) => element.querySelectorAll("input").forEach((input) => (input.disabled = true)));
    place.append(card("Limits", h("p", { class: "note" }, "Your role may see limits, not change them."), h("div", { class: "limit-rows" }, ...rows.map(({ element }) => element))));
  }
  place.append(narrower(state));
  await every(EVERY_MS, state.signal, async () => {
    const quota = await get(`${state.path}/quota`, {}, state.signal);
    state.used = Object.fromEntries(Object.entries(quota.limits).map(([name, { used, reserved }]) => [name, used + reserved]));
    for (const [name, meterPlace] of standing) {
      const limit = quota.limits[name];
      if (limit && isCounted(name)) fill(meterPlace, limitMeter(name, limit));
      else setText(meterPlace, "");
    }
  });
}

function row(name, value, isShadow, standing) {
  const { label = words(name) } = LIMITS.get(name) ?? {};
  const figure = limitField(name, value);
  const shadow = field({ name: `shadow.${name}`, label: "Only count", type: "checkbox", value: isShadow });
  shadow.control.setAttribute("aria-label", `Only count ${label}`);
  const meterPlace = h("div", { class: "standing" });
  standing.set(name, meterPlace);
  return { name, figure, shadow, element: h("div", { class: "limit-row" }, figure.element, shadow.element, meterPlace) };
}

function limitForm(rows, fields, state) {
  function wanted(values) {
    const changed = {};
    for (const { name } of rows) {
      const value = values[`limits.${name}`];
      if (value !== null || name in state.tenant.limits) changed[name] = value;
    }
    return { limits: changed, shadow: rows.map(({ name }) => name).filter((name) => values[`shadow.${name}`]) };
  }
  return form({
    fields,
    body: h("div", { class: "limit-rows" }, ...rows.map(({ element }) => element)),
    action: "Save limits",
    consequence: (values) => {
      const { limits: after, shadow } = wanted(values);
      return ofLimits(`requests of ${state.id}`, state.tenant.limits, after, { shadow, used: state.used });
    },
    async send(values) {
      await change("PATCH", state.path, wanted(values), { version: state.tenant.version });
      await state.refresh();
      toast("Limits are saved.");
    },
  });
}

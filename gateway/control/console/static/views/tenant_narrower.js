// A tenant's limits for one model, one lane, or both, in addition to its overall limits.

import { change } from "../api.js";
import { h, named, toast } from "../dom.js";
import { amount, words } from "../format.js";
import { ofLimits } from "../parts/consequences.js";
import { field, formDialog } from "../parts/dialog.js";
import { LIMITS, limitField } from "../parts/limits.js";
import { isMoney, money } from "../parts/money.js";
import { button, card, laneTag } from "../parts/pieces.js";
import { table } from "../parts/table.js";
import { LANES } from "../parts/tenant_form.js";
import { mayChange } from "../session.js";

/** Limits that apply only to a tenant as a whole. */
const WHOLE = ["queued_requests", "enqueued_batch_tokens"];
const same = (a, b) => a.model === b.model && a.lane === b.lane;
const told = (by) => `${by.model ?? "any model"}, ${by.lane ?? "any lane"}`;

/** The form's limits that are set. */
const limitsOf = (values) => Object.fromEntries(Object.entries(values)
  .filter(([name, value]) => name.startsWith("limits.") && value !== null).map(([name, value]) => [name.slice("limits.".length), value]));

export function narrower(state) {
  const shown = table({
    caption: "Limits of one model or lane",
    key: told,
    empty: "This tenant has no limits for single models or lanes.",
    columns: [
      { name: "Model", cell: (by) => (by.model ? named(by.model) : "any") },
      { name: "Lane", cell: (by) => (by.lane ? laneTag(by.lane) : "any") },
      { name: "Limits", class: "wide", cell: (by) => Object.entries(by.limits).map(([name, value]) => h("div", {}, `${words(name)}: ${(isMoney(name) ? money : amount)(value)}`)) },
      ...(mayChange() ? [{ name: "Actions", hidden: true, class: "actions", cell: (by) => [
        button("Edit", () => edit(by), { describes: told(by) }),
        button("Remove", () => remove(by), { kind: "quiet danger", describes: told(by) }),
      ] }] : []),
    ],
  });
  const draw = () => shown.update(state.tenant.limits_by);

  async function save(rows, version) {
    await change("PATCH", state.path, { limits_by: rows }, { version });
    await state.refresh();
    draw();
    toast("Limits are saved.");
  }
  const others = (by) => state.tenant.limits_by.filter((each) => by === null || !same(each, by));
  async function remove(by) {
    try {
      await save(others(by), state.tenant.version);
    } catch (error) {
      toast(error.message, "bad");
    }
  }
  const edit = (by = null) => formDialog(by ? "Edit limits" : "New limits of one model or lane", {
    intro: "They apply in addition to the tenant's overall limits. Empty means no limit.",
    action: "Save limits",
    layout: "two",
    fields: [
      field({ name: "model", label: "Model", value: by?.model, hint: "Empty: any." }),
      field({ name: "lane", label: "Lane", type: "select", value: by?.lane ?? "", options: [["", "any"], ...LANES] }),
      ...[...LIMITS].filter(([name]) => !WHOLE.includes(name)).map(([name]) => limitField(name, by?.limits[name])),
    ],
    consequence: (values) => ofLimits(`requests of ${state.id} for ${told(values)}`, by?.limits ?? {}, limitsOf(values)),
    async send(values) {
      const { model, lane } = values;
      await save([{ model, lane, limits: limitsOf(values) }, ...others(by)], state.tenant.version);
    },
  });
  draw();
  return card(null, h("div", { class: "row-head" }, h("h2", {}, "Limits of one model or lane"), mayChange() && button("New limits", () => edit())), shown.element);
}

// A tenant's settings: weight, lanes, models, time zone and rules.

import { change } from "../api.js";
import { h, named, toast } from "../dom.js";
import { moment } from "../format.js";
import { ofSettings } from "../parts/consequences.js";
import { form } from "../parts/dialog.js";
import { card, facts } from "../parts/pieces.js";
import { tenantBody, tenantFields } from "../parts/tenant_form.js";
import { mayChange } from "../session.js";

export async function settings(place, state) {
  const { tenant } = state;
  place.append(card("About", facts([
    ["Id", named(tenant.id)],
    ["Made", moment(tenant.created_at)],
    ["Version", String(tenant.version)],
    ["Aliases of models", Object.entries(tenant.model_aliases ?? {}).map(([from, to]) => h("div", {}, named(from), " → ", named(to)))],
  ])));
  const fields = tenantFields(tenant);
  if (!mayChange()) {
    fields.forEach(({ element }) => element.querySelectorAll("input, select").forEach((each) => (each.disabled = true)));
    place.append(card("Settings", h("p", { class: "note" }, "Your role may see settings, not change them."), h("div", { class: "form two" }, ...fields.map(({ element }) => element))));
    return;
  }
  place.append(card("Settings", form({
    fields,
    action: "Save settings",
    layout: "two",
    consequence: (values) => ofSettings(state.tenant, tenantBody(values, false)),
    async send(values) {
      await change("PATCH", state.path, tenantBody(values, false), { version: state.tenant.version });
      await state.refresh();
      toast("Settings are saved.");
    },
  })));
}

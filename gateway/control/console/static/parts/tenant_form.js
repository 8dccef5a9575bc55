// The fields of a tenant, as it is made and as it is changed.

import { field } from "./dialog.js";

export const LANES = [["latency", "latency"], ["throughput", "throughput"]];

/** The API's defaults: a form that is sent as it opens makes the same tenant as a call that names none of them. */
export const NEW = { weight: 1, lanes: LANES.map(([lane]) => lane), default_lane: "latency", reserve: "progressive", preemption: "fast" };

/** Names with commas between, as a list; empty: null, which is all. */
export const asList = (text) => text?.split(",").map((each) => each.trim()).filter(Boolean) ?? null;

export function tenantFields(tenant = null) {
  const was = tenant ?? NEW;
  return [
    ...(tenant ? [] : [
      field({ name: "id", label: "Id", required: true, hint: "Lower-case letters, digits, hyphens. It never changes." }),
      field({ name: "parent", label: "Parent", hint: "A tenant whose limits this one's work must fit too. It never changes." }),
    ]),
    field({ name: "name", label: "Name", value: was.name }),
    field({ name: "weight", label: "Weight", type: "number", value: was.weight, hint: "Its share of the work against other tenants." }),
    field({ name: "lanes", label: "Lanes it may use", type: "checkboxes", options: LANES, value: was.lanes }),
    field({ name: "default_lane", label: "Default lane", type: "select", options: LANES, value: was.default_lane }),
    field({ name: "models", label: "Models", value: was.models?.join(", "), hint: "Names with commas between; empty: all." }),
    field({ name: "timezone", label: "Time zone", value: was.timezone, hint: "Of its calendar limits, such as Europe/Berlin; empty: UTC." }),
    field({ name: "reserve", label: "Reservation", type: "select", value: was.reserve, options: [["progressive", "progressive: as tokens come"], ["full", "full: the most it may come to, at the door"]] }),
    field({ name: "preemption", label: "Preemption", type: "select", value: was.preemption, options: [["fast", "fast: whichever costs less"], ["exact", "exact: swapped, never recomputed"]] }),
    field({ name: "share_group", label: "Share group", value: was.share_group, hint: "Tenants of one group reuse each other's cached prompts; empty: none does." }),
  ];
}

/** What the API takes of the form's values; on making a tenant what is empty is left to the default. */
export function tenantBody(values, isNew) {
  const body = { ...values, models: asList(values.models) };
  return isNew ? Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null)) : body;
}

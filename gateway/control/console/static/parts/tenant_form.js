// The form for creating and changing a tenant.

import { field } from "./dialog.js";

export const LANES = [["latency", "latency"], ["throughput", "throughput"]];

/** The API's defaults: an unchanged form creates the same tenant as a call without these fields. */
export const NEW = { weight: 1, lanes: LANES.map(([lane]) => lane), default_lane: "latency", reserve: "progressive", preemption: "fast", self_service: "none" };

/** Parses names separated by commas; empty becomes null, which means all. */
export const asList = (text) => text?.split(",").map((each) => each.trim()).filter(Boolean) ?? null;

export function tenantFields(tenant = null) {
  const was = tenant ?? NEW;
  return [
    ...(tenant ? [] : [
      field({ name: "id", label: "Id", required: true, hint: "Lower-case letters, digits, hyphens. It cannot be changed later." }),
      field({ name: "parent", label: "Parent", hint: "A tenant whose limits apply to this one too. It cannot be changed later." }),
    ]),
    field({ name: "name", label: "Name", value: was.name }),
    field({ name: "weight", label: "Weight", type: "number", value: was.weight, hint: "Its share of the capacity compared with other tenants." }),
    field({ name: "lanes", label: "Lanes it may use", type: "checkboxes", options: LANES, value: was.lanes }),
    field({ name: "default_lane", label: "Default lane", type: "select", options: LANES, value: was.default_lane }),
    field({ name: "models", label: "Models", value: was.models?.join(", "), hint: "Names separated by commas; empty: all." }),
    field({ name: "timezone", label: "Time zone", value: was.timezone, hint: "For limits per day and month, such as Europe/Berlin; empty: UTC." }),
    field({ name: "reserve", label: "Reservation", type: "select", value: was.reserve, options: [["progressive", "progressive: as tokens come"], ["full", "full: the most it may come to, at the door"]] }),
    field({ name: "preemption", label: "Preemption", type: "select", value: was.preemption, options: [["fast", "fast: whichever costs less"], ["exact", "exact: swapped, never recomputed"]] }),
    field({ name: "self_service", label: "Self-service", type: "select", value: was.self_service, options: [["none", "none: only operators manage its keys"], ["keys", "keys: its keys may manage keys"]] }),
    field({ name: "share_group", label: "Share group", value: was.share_group, hint: "Tenants of one group reuse each other's cached prompts; empty: none does." }),
  ];
}

/** The form's values in the API's format. For a new tenant, empty fields are left out. */
export function tenantBody(values, isNew) {
  const body = { ...values, models: asList(values.models) };
  return isNew ? Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null)) : body;
}

// Links to the pages of a tenant and a request.

import { named } from "../dom.js";
import { link } from "./pieces.js";

export const tenantLink = (id) => (id ? link(`#/tenants/${encodeURIComponent(id)}`, named(id)) : "–");
export const requestLink = (id, label = id) => link(`#/requests/${encodeURIComponent(id)}`, named(label, "id"));

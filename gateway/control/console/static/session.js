// The signed-in operator and the rights of the role.

import { ApiError, SignedOut, getIfThere, session } from "./api.js";
import { setCurrency } from "./parts/money.js";

const RANKS = { viewer: 0, operator: 1, owner: 2 };
const OWNER = { name: "admin", role: "owner" };
let who = null;
let provider = null;
let links = {};

/** Whether the operator has at least this role. Buttons that need more are not shown. */
const may = (role) => who !== null && (RANKS[who.role] ?? 0) >= RANKS[role];
export const mayChange = () => may("operator");
export const mayOwn = () => may("owner");
export const signedIn = () => who;

/** The identity provider, `{name, url}`; null if none is configured. */
export const singleSignOn = () => provider;

/** Links to other tools, `{grafana?, trace?}`, where they are configured. */
export const tools = () => links;
export const traceUrl = (id) => links.trace?.replaceAll("{trace_id}", encodeURIComponent(id));

/** Loads the operator. Throws SignedOut without a session. A gateway without named operators has one, the owner. */
export async function recognise() {
  const told = await asked();
  provider = told.oidc ?? null;
  who = told.operator;
  links = told.installation?.links ?? {};
  setCurrency(told.installation?.currency ?? "");
  if (who === null) throw new SignedOut(401, { message: "You are not signed in." });
  return who;
}

async function asked() {
  try {
    return await (await session("GET")).json();
  } catch (error) {
    if (!(error instanceof ApiError) || ![404, 405].includes(error.status)) throw error;
    return { operator: (await getIfThere("/me")) ?? ((await getIfThere("/workers", { limit: 1 })) && OWNER) };
  }
}

export async function signIn(key) {
  await session("POST", key);
  return recognise();
}

export async function signOut() {
  try {
    await session("DELETE");
  } catch (error) {
    if (!(error instanceof SignedOut)) throw error;
  }
  who = null;
}

export const forget = () => (who = null);

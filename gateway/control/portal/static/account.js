// The calling key, and what the gateway says of it. The key is kept for this tab alone: not in a cookie, not in a URL.

import { SignedOut, get, useKey } from "./console/api.js";
import { setCurrency } from "./console/parts/money.js";

const AT = "fairlane-portal-key";
let key = null;
let me = null;

/** The key of this tab, and what `/v1/me` says of it. */
export const ownKey = () => key;
export const caller = () => me;

/** Signs in with a key or a token; without one, with that of this tab. Throws SignedOut if it is not accepted. */
export async function signIn(given = stored()) {
  if (!given || !/^[\x21-\x7e]+$/.test(given)) throw new SignedOut(401, { message: "You are not signed in." });
  useKey(given);
  me = await get("/me");
  setCurrency(me.currency);
  keep(given);
}

export function signOut() {
  me = null;
  keep(null);
  useKey("");
}

/** Continues with another key, after the one of this tab was rotated. */
export function replaceKey(made) {
  useKey(made.key);
  keep(made.key);
  me = { ...me, key: made };
}

function keep(given) {
  key = given;
  try {
    if (given === null) sessionStorage.removeItem(AT);
    else sessionStorage.setItem(AT, given);
  } catch {
    // storage is disabled: kept for this page only
  }
}

function stored() {
  try {
    return sessionStorage.getItem(AT);
  } catch {
    return null;
  }
}

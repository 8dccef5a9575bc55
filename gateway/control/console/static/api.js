// The admin API, as any other client calls it: with the session's cookie, and the header that only this page can send.

const CSRF = { "x-fairlane-csrf": "1" };
const PATIENCE_MS = 15_000;
const ADMIN = "/admin/v1";

/** What the gateway refused, in its own words. `param`: the field that is the cause. */
export class ApiError extends Error {
  constructor(status, error = {}) {
    super(error.message ?? `The gateway answered ${status}.`);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
    this.limit = error.limit ?? null;
  }
}

/** The session has ended, or there is none. */
export class SignedOut extends ApiError {}

async function refusal(response) {
  const said = await response.json().catch(() => ({}));
  const kind = response.status === 401 ? SignedOut : ApiError;
  return new kind(response.status, said.error);
}

async function send(path, { method = "GET", headers = {}, body, signal, patience = PATIENCE_MS } = {}) {
  const limits = [AbortSignal.timeout(patience), ...(signal ? [signal] : [])];
  const response = await fetch(path, {
    method,
    headers: { ...CSRF, ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.any(limits),
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

export const segment = encodeURIComponent;

/** A query of what is set. */
export function query(fields) {
  const set = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

/** Reads. Raises ApiError. */
export async function get(path, fields = {}, signal = undefined) {
  return (await send(`${ADMIN}${path}${query(fields)}`, { signal })).json();
}

/** Reads what an older gateway has not: null where it answers 404. */
export async function getIfThere(path, fields = {}, signal = undefined) {
  try {
    return await get(path, fields, signal);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Changes something. `version`: what the caller has seen, so that nobody's change is lost. Raises ApiError. */
export async function change(method, path, body = {}, { version, patience } = {}) {
  const headers = version === undefined ? {} : { "if-match": `"${version}"` };
  const response = await send(`${ADMIN}${path}`, { method, headers, body, patience });
  return response.status === 204 ? null : response.json();
}

/** Sends a file. Raises ApiError. */
export async function upload(path, file, patience) {
  const form = new FormData();
  form.append("file", file);
  const limits = AbortSignal.timeout(patience);
  const response = await fetch(`${ADMIN}${path}`, { method: "POST", headers: CSRF, body: form, cache: "no-store", signal: limits });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** What a list holds up to `most` items, page by page. */
export async function list(path, fields = {}, { most = 1000, signal } = {}) {
  const found = [];
  for (let after = null; ; ) {
    const page = await get(path, { ...fields, limit: Math.min(most - found.length, 500), after }, signal);
    found.push(...page.data);
    if (!page.has_more || found.length >= most) return { data: found, has_more: page.has_more };
    after = page.last_id;
  }
}

/** `/console/session`: who is signed in, in, and out. */
export async function session(method, key = null) {
  const headers = key === null ? {} : { authorization: `Bearer ${key}` };
  return send("/console/session", { method, headers });
}

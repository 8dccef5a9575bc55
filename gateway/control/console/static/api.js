// The API client. The console calls the admin API with the session's cookie, and a header that only this page can send;
// the portal calls the tenant API with its key.

const CSRF = { "x-fairlane-csrf": "1" };
const PATIENCE_MS = 15_000;
/** The prefix of the gateway's paths; empty without one. */
export const ROOT = new URL(import.meta.url).pathname.replace(/(\/portal)?\/console\/api\.js$/, "");
let base = `${ROOT}/admin/v1`;
let proof = CSRF;

/** From now on, calls the tenant API with a key. */
export function useKey(key) {
  base = `${ROOT}/v1`;
  proof = { authorization: `Bearer ${key}` };
}

/** An error response. `param` is the field that caused it. */
export class ApiError extends Error {
  constructor(status, error = {}) {
    super(error.message ?? `The gateway answered ${status}.`);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
    this.limit = error.limit ?? null;
  }
}

/** Thrown without a valid session. */
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
    headers: { ...proof, ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.any(limits),
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

export const segment = encodeURIComponent;

/** A query string of all fields with a value. */
export function query(fields) {
  const set = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

/** GET. Throws ApiError. */
export async function get(path, fields = {}, signal = undefined) {
  return (await send(`${base}${path}${query(fields)}`, { signal })).json();
}

/** GET; null for 404, which an older gateway answers. */
export async function getIfThere(path, fields = {}, signal = undefined) {
  try {
    return await get(path, fields, signal);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** Sends a change. `version` is the version it is based on, so that no concurrent change is lost. Throws ApiError. */
export async function change(method, path, body = {}, { version, patience } = {}) {
  const headers = version === undefined ? {} : { "if-match": `"${version}"` };
  const response = await send(`${base}${path}`, { method, headers, body, patience });
  return response.status === 204 ? null : response.json();
}

/** Uploads a file. Throws ApiError. */
export async function upload(path, file, patience) {
  const form = new FormData();
  form.append("file", file);
  const limits = AbortSignal.timeout(patience);
  const response = await fetch(`${base}${path}`, { method: "POST", headers: proof, body: form, cache: "no-store", signal: limits });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** Reads up to `most` items of a list, page by page. */
export async function list(path, fields = {}, { most = 1000, signal } = {}) {
  const found = [];
  for (let after = null; ; ) {
    const page = await get(path, { ...fields, limit: Math.min(most - found.length, 500), after }, signal);
    found.push(...page.data);
    if (!page.has_more || found.length >= most) return { data: found, has_more: page.has_more };
    after = page.last_id;
  }
}

/** `/console/session`: the operator, sign-in and sign-out. */
export async function session(method, key = null) {
  const headers = key === null ? {} : { authorization: `Bearer ${key}` };
  return send(`${ROOT}/console/session`, { method, headers });
}

"""Keys where they do not count, keys that are no more, keys that are none, and what another tenant has."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.system.harness import ADMIN_KEY, MODEL, Server
from tests.system.attacks.rows import Row, compared
from tests.system.attacks.target import PERSON, PROXY, STRANGER, bearer, heard, operators, request, tenants

KIND = "scopes"
MODELS, COMPLETIONS = "/v1/models", "/v1/completions"
ASKED = {"model": MODEL, "prompt": "a", "max_tokens": 1}


def rows(server: Server) -> Iterator[Row]:
    """Each key, then what a tenant finds of another."""
    yield from _misplaced(server)
    yield from _ended(server)
    yield from _scoped(server)
    yield from _malformed(server)
    yield from _of_another(server)


def asked(
    server: Server,
    path: str,
    headers: Mapping[str, str],
    body: Mapping[str, Any] | None = None,
    source: str = PERSON,
) -> str:
    """What a tenants' path answers."""
    sent = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    return heard(tenants(server), request(method, path, headers, sent), source=source).outcome


def made(server: Server, tenant: str, **fields: Any) -> tuple[str, str]:
    """The id and the secret of a new key."""
    with server.admin() as admin:
        answer = admin.post(f"/tenants/{tenant}/keys", json={"name": "attack", **fields}).raise_for_status()
        return str(answer.json()["id"]), str(answer.json()["key"])


def _misplaced(server: Server) -> Iterator[Row]:
    key = bearer(server.tenant("misplaced"))
    for path in ("/admin/v1/tenants", "/admin/v1/audit", "/metrics"):
        seen = heard(operators(server), request("GET", path, key)).outcome
        yield compared(KIND, f"a tenant's key on `{path}`", "401", seen)
    yield compared(KIND, "the admin key as a tenant's", "401", asked(server, MODELS, bearer(ADMIN_KEY)))


def _ended(server: Server) -> Iterator[Row]:
    first = server.tenant("ended")
    with server.admin() as admin:
        revoked_id, revoked = made(server, "ended")
        before = asked(server, MODELS, bearer(revoked))
        admin.delete(f"/tenants/ended/keys/{revoked_id}").raise_for_status()
        seen = f"{before}, then {asked(server, MODELS, bearer(revoked))}"
        yield compared(KIND, "a key that was just revoked", "200, then 401", seen)
        replaced_id, replaced = made(server, "ended")
        admin.post(f"/tenants/ended/keys/{replaced_id}/rotate").raise_for_status()
        yield compared(KIND, "a key that was just rotated", "401", asked(server, MODELS, bearer(replaced)))
        _, expired = made(server, "ended", expires_at=time.time() + 0.5)
        while asked(server, MODELS, bearer(expired)) == "200":
            continue
        yield compared(KIND, "a key that has expired", "401", asked(server, MODELS, bearer(expired)))
        admin.post("/tenants/ended/suspend").raise_for_status()
        yield compared(KIND, "a suspended tenant's key", "403", asked(server, COMPLETIONS, bearer(first), ASKED))
        admin.delete("/tenants/ended").raise_for_status()
        yield compared(KIND, "a deleted tenant's key", "401", asked(server, MODELS, bearer(first)))


def _scoped(server: Server) -> Iterator[Row]:
    server.tenant("scoped")
    _, reader = made(server, "scoped", scopes={"endpoints": [MODELS]})
    yield compared(KIND, "a path outside a key's", "403", asked(server, COMPLETIONS, bearer(reader), ASKED))
    disguised = f"{MODELS}/../completions"
    yield compared(KIND, f"the same as `{disguised}`", "404 or 405", asked(server, disguised, bearer(reader), ASKED))
    _, modelled = made(server, "scoped", scopes={"models": ["another"]})
    yield compared(KIND, "a model outside a key's", "403", asked(server, COMPLETIONS, bearer(modelled), ASKED))
    _, slow = made(server, "scoped", scopes={"lanes": ["throughput"]})
    seen = asked(server, COMPLETIONS, bearer(slow) | {"x-fairlane-lane": "latency"}, ASKED)
    yield compared(KIND, "a lane outside a key's", "403", seen)
    _, far = made(server, "scoped", scopes={"cidrs": ["192.0.2.0/24"]})
    for what, source, hops in [
        ("an address outside a key's", PERSON, ""),
        ("the same with a forged `x-forwarded-for`", STRANGER, "192.0.2.1"),
        ("the same, forged before a trusted proxy", PROXY, f"192.0.2.1, {STRANGER}"),
    ]:
        forged = {"x-forwarded-for": hops} if hops else {}
        yield compared(KIND, what, "403", asked(server, MODELS, bearer(far) | forged, source=source))


def _malformed(server: Server) -> Iterator[Row]:
    key = server.tenant("malformed")
    shapes = {
        "no key": {},
        "an empty key": {"authorization": "Bearer "},
        "a key cut short": bearer(key[:-1]),
        "a key with more behind it": bearer(key + "a"),
        "a key in another case": bearer(key.swapcase()),
        "a key's public part": bearer(key.rpartition("-")[0] or key[:8]),
        "a key as a password": {"authorization": f"Basic {key}"},
        "a key beside another": {"authorization": f"Bearer {key}, Bearer {key}"},
        "a key in two headers": {"authorization": f"Bearer {key}\r\nauthorization: Bearer {key}"},
        "a key cut short, in `x-api-key`": {"x-api-key": key[:-1]},
        "a key in `x-api-key` beside a wrong one": {"x-api-key": key, **bearer(key[:-1])},
        "a key of bytes above 127": bearer("\xff" * 40),
    }
    for name, headers in shapes.items():
        yield compared(KIND, name, "401", asked(server, MODELS, headers))
    yield compared(
        KIND, "a key in the URL", "401", asked(server, f"{MODELS}?api_key={key}&authorization=Bearer%20{key}", {})
    )


def _of_another(server: Server) -> Iterator[Row]:
    owner, thief = server.tenant("owner"), server.tenant("thief")
    prompt = {"model": MODEL, "prompt": "north river seven copper window " * 12, "max_tokens": 1, "temperature": 0}
    cached, replayed = [], []
    for key in (owner, thief, owner):
        sent = request("POST", COMPLETIONS, bearer(key) | {"idempotency-key": "the-same"}, json.dumps(prompt).encode())
        head, _, body = heard(tenants(server), sent).raw.partition(b"\r\n\r\n")
        replayed.append(b"idempotent-replayed: true" in head.lower())
        cached.append(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"])
    seen = "none" if cached[1] == 0 else f"{cached[1]} tokens"
    yield compared(KIND, "another tenant's prompts in the cache", "none", seen)
    seen = "the owner's alone" if replayed == [False, False, True] else f"replayed: {replayed}"
    yield compared(KIND, "another tenant's answer by its `Idempotency-Key`", "the owner's alone", seen)

"""An issuer's public keys: fetched in the background, and kept while the issuer is unavailable.

A key is stored once for each configured algorithm that fits its type, so an algorithm is never used with a key of
another type. Fetches are bounded in time, bytes and keys, and decoded in a thread."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
import msgspec

from fairlane.gateway.errors import ApiError
from fairlane.gateway.identity.settings import Algorithm, SignerSection

log = logging.getLogger(__name__)

# From the connection to the last byte.
FETCH_TIMEOUT_S = 5.0
MOST_BYTES = 256 * 1024
MOST_KEYS = 64
UNKNOWN_EVERY_S = 60.0
# Keys fetched this recently are not fetched again to find an unknown key.
RECENT_S = 1.0
FIRST_RETRY_S = 5.0
# Key sizes in bits: smaller keys can be forged, larger ones are slow to verify with.
RSA_BITS = (2048, 8192)
_CURVES: Mapping[str, str] = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

Keys = Mapping[tuple[str, str], jwt.PyJWK]


class AnswerRefused(Exception):
    """An unusable reply of an identity provider. The message contains no part of it."""


@dataclass(eq=False)
class SigningKeys:
    """The keys of one issuer. For one event loop."""

    issuer: SignerSection
    clock: Callable[[], float] = time.monotonic
    _keys: Keys = field(default_factory=dict, init=False)
    _read_s: float = field(default=-math.inf, init=False)
    _sought_s: float = field(default=-math.inf, init=False)
    _fetching: asyncio.Task[None] | None = field(default=None, init=False)
    _is_failing: bool = field(default=False, init=False)

    async def of(self, kid: str, algorithm: str) -> jwt.PyJWK:
        """Return the key with an id.

        Raises ApiError: `unknown_signing_key` if the issuer's keys were just fetched and lack it; `issuer_unavailable`
        if it does not respond, or was just queried for another unknown key."""
        key = self._known(kid, algorithm)
        if key is not None:
            return key
        is_recent = self.clock() - self._read_s < RECENT_S
        if not is_recent and not self._may_seek():
            wait_s = UNKNOWN_EVERY_S - (self.clock() - self._sought_s)
            raise ApiError(
                "The token's key is unknown, and its issuer cannot be asked again yet.",
                "issuer_unavailable",
                retry_after_s=wait_s,
            )
        if not is_recent:
            await asyncio.shield(self._fetch())
            key = self._known(kid, algorithm)
            if key is not None:
                return key
        if self._is_failing:
            raise ApiError("The keys of the token's issuer could not be read.", "issuer_unavailable", retry_after_s=5.0)
        raise ApiError("The issuer of the token has no such signing key.", "unknown_signing_key")

    async def run(self) -> None:
        while True:
            await asyncio.shield(self._fetch())
            await asyncio.sleep(self.issuer.refresh_s if self._keys else FIRST_RETRY_S)

    def _known(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        is_stale = self.clock() - self._read_s > self.issuer.stale_s
        return None if is_stale else self._keys.get((kid, algorithm))

    def _may_seek(self) -> bool:
        if self._fetching is not None:
            return True
        if self.clock() - self._sought_s < UNKNOWN_EVERY_S:
            return False
        self._sought_s = self.clock()
        return True

    def _fetch(self) -> "asyncio.Task[None]":
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._read(), name=f"keys of {self.issuer.issuer}")
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, _: "asyncio.Task[None]") -> None:
        self._fetching = None

    async def _read(self) -> None:
        began_s = self.clock()
        try:
            found = await _read_keys(self.issuer)
        except Exception as error:  # noqa: BLE001 - whatever the response causes, the old keys stay
            if not self._is_failing:
                reason = str(error) if isinstance(error, AnswerRefused) else type(error).__name__
                log.warning("the keys of issuer %s cannot be read: %s", self.issuer.issuer, reason)
            self._is_failing = True
            return
        if self._is_failing:
            log.warning("the keys of issuer %s can be read again", self.issuer.issuer)
        self._keys, self._read_s, self._is_failing = found, began_s, False


async def _read_keys(issuer: SignerSection) -> Keys:
    status, raw = await ask("GET", issuer.jwks_url, FETCH_TIMEOUT_S)
    if status != httpx.codes.OK:  # redirects too: only the settings define where keys are
        raise AnswerRefused(f"it answers {status}")
    return await asyncio.to_thread(decode_keys, raw, issuer.algorithms)


async def ask(
    method: str, url: str, timeout_s: float, *, form: Mapping[str, str] | None = None, auth: httpx.Auth | None = None
) -> tuple[int, bytes]:
    """Return status and body of an identity provider's response, bounded in time and size. Redirects are not followed.

    Raises AnswerRefused for a larger response, httpx.HTTPError, TimeoutError, OSError."""
    raw = bytearray()
    plain = {"accept": "application/json", "accept-encoding": "identity"}  # a compressed response has no bound
    client = httpx.AsyncClient(timeout=timeout_s, auth=auth)
    async with asyncio.timeout(timeout_s), client, client.stream(method, url, headers=plain, data=form) as answer:
        async for part in answer.aiter_raw():
            raw += part
            if len(raw) > MOST_BYTES:
                raise AnswerRefused(f"it answers more than {MOST_BYTES} bytes")
    return answer.status_code, bytes(raw)


def decode_keys(raw: bytes, algorithms: tuple[Algorithm, ...]) -> Keys:
    """Return the public keys of a JWKS document (RFC 7517), once for each of these algorithms that they fit.

    Other keys are skipped. Raises AnswerRefused if none is left."""
    try:
        listed = msgspec.json.decode(raw, type=dict[str, Any]).get("keys")
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise AnswerRefused(f"it answers no JWKS of at most {MOST_KEYS} keys")
    found: dict[tuple[str, str], jwt.PyJWK] = {}
    for each in listed:
        if not isinstance(each, dict) or not isinstance(each.get("kid"), str):
            continue
        for algorithm in algorithms:
            if fits(each, algorithm) and (key := _loaded(each, algorithm)) is not None:
                found.setdefault((each["kid"], algorithm), key)
    if not found:
        raise AnswerRefused("none of its keys fits the configured algorithms")
    return found


def fits(key: Mapping[str, object], algorithm: Algorithm) -> bool:
    """Return whether a published key may verify an algorithm's signatures. Keys with a private part may not."""
    operations = key.get("key_ops", ["verify"])
    is_for_signatures = key.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations
    if not is_for_signatures or key.get("alg", algorithm) != algorithm or "d" in key or "k" in key:
        return False
    if algorithm == "EdDSA":
        return key.get("kty") == "OKP" and key.get("crv") == "Ed25519"
    if algorithm in _CURVES:
        return key.get("kty") == "EC" and key.get("crv") == _CURVES[algorithm]
    return key.get("kty") == "RSA"


def _loaded(key: dict[str, Any], algorithm: Algorithm) -> jwt.PyJWK | None:
    with suppress(jwt.PyJWTError, ValueError, TypeError, OverflowError):
        loaded = jwt.PyJWK(key, algorithm=algorithm)
        if key["kty"] != "RSA" or RSA_BITS[0] <= loaded.key.key_size <= RSA_BITS[1]:
            return loaded
    return None

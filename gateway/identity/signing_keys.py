"""An issuer's public keys: fetched beside requests, and kept while the issuer is away.

    run ──every refresh_s──> fetch ──> the keys of now; one that is no more among them signs nothing any more
    of ──key known──> at once
       └─unknown──> fetch, at most once in UNKNOWN_EVERY_S, one for all that wait ──> the key, 401, or 503 where
                    the issuer does not answer or was asked a moment ago

A key is kept for each algorithm that the settings allow and its type fits: an algorithm never meets a key of another
kind. What was fetched is bounded in time, in bytes and in keys, and read in a thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx
import jwt
import msgspec

from fairlane.gateway.errors import ApiError
from fairlane.gateway.identity.settings import Algorithm, Signer

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 5.0
"""From connecting to the last byte."""
MOST_BYTES = 256 * 1024
MOST_KEYS = 64
UNKNOWN_EVERY_S = 60.0
"""How often, at most, a key that nobody knows is looked for."""
RECENT_S = 1.0
"""Keys that were read so lately need not be read again for a key that is not among them."""
FIRST_RETRY_S = 5.0
"""How soon a fetch is tried again where no key is known yet."""
RSA_BITS = (2048, 8192)
"""A weaker key can be forged; a longer one takes long to check."""
_CURVES: Mapping[str, str] = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

Keys = Mapping[tuple[str, str], jwt.PyJWK]
"""By key id and algorithm."""


class KeysRefused(Exception):
    """What an issuer answered cannot be used; the message holds nothing of it."""


class SigningKeys:
    """Those of one issuer. For one event loop."""

    def __init__(self, issuer: Signer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._keys: Keys = {}
        self._read_s = float("-inf")
        """When the keys were fetched last."""
        self._sought_s = float("-inf")
        """When an unknown key was looked for last."""
        self._fetching: asyncio.Task[None] | None = None
        self._is_failing = False

    async def of(self, kid: str, algorithm: str) -> jwt.PyJWK:
        """Return the key that signs under an id.

        Raises ApiError: `unknown_signing_key` where the issuer, just asked, has no such key; `issuer_unavailable` where
        it cannot be asked now, because it does not answer or because it was asked for another key a moment ago.
        """
        key = self._known(kid, algorithm)
        if key is not None:
            return key
        is_recent = self._clock() - self._read_s < RECENT_S
        if not is_recent and not self._may_seek():
            wait_s = UNKNOWN_EVERY_S - (self._clock() - self._sought_s)
            raise ApiError(
                "The issuer cannot be asked for the token's key yet.", "issuer_unavailable", retry_after_s=wait_s
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
        """Read the keys again and again."""
        while True:
            await asyncio.shield(self._fetch())
            await asyncio.sleep(self._issuer.refresh_s if self._keys else FIRST_RETRY_S)

    @property
    def _is_stale(self) -> bool:
        return self._clock() - self._read_s > self._issuer.stale_s

    def _known(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        return None if self._is_stale else self._keys.get((kid, algorithm))

    def _may_seek(self) -> bool:
        """Look for an unknown key, alone or with whoever does so already."""
        if self._fetching is not None:
            return True
        if self._clock() - self._sought_s < UNKNOWN_EVERY_S:
            return False
        self._sought_s = self._clock()
        return True

    def _fetch(self) -> "asyncio.Task[None]":
        """One at a time."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._read(), name=f"keys of {self._issuer.name}")
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, _: "asyncio.Task[None]") -> None:
        self._fetching = None

    async def _read(self) -> None:
        """The keys of now in place of those before; these stay where that fails."""
        began_s = self._clock()
        try:
            found = await read_keys(self._issuer)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's answer does: the keys stay as they were
            if not self._is_failing:
                reason = str(error) if isinstance(error, KeysRefused) else type(error).__name__
                log.warning("the keys of issuer %s cannot be read: %s", self._issuer.name, reason)
            self._is_failing = True
            return
        if self._is_failing:
            log.warning("the keys of issuer %s can be read again", self._issuer.name)
        self._keys, self._read_s, self._is_failing = found, began_s, False


async def read_keys(issuer: Signer) -> Keys:
    """What the issuer publishes now. Raises KeysRefused, httpx.HTTPError, TimeoutError."""
    async with asyncio.timeout(FETCH_TIMEOUT_S):
        raw = await _download(issuer.jwks_url)
    return await asyncio.to_thread(decode_keys, raw, issuer.algorithms)


async def _download(url: str) -> bytes:
    raw = bytearray()
    plain = {"accept": "application/json", "accept-encoding": "identity"}  # what is packed has no bound
    async with httpx.AsyncClient(timeout=FETCH_TIMEOUT_S) as http, http.stream("GET", url, headers=plain) as answer:
        if answer.status_code != httpx.codes.OK:  # a redirection too: where keys are, the settings alone say
            raise KeysRefused(f"it answers {answer.status_code}")
        async for part in answer.aiter_raw():
            raw += part
            if len(raw) > MOST_BYTES:
                raise KeysRefused(f"it answers more than {MOST_BYTES} bytes")
    return bytes(raw)


def decode_keys(raw: bytes, algorithms: tuple[Algorithm, ...]) -> Keys:
    """The public keys of a JWKS document (RFC 7517) by id, for each of these algorithms that they fit.

    Others are passed over. Raises KeysRefused where none is left."""
    try:
        listed = msgspec.json.decode(raw, type=dict[str, Any]).get("keys")
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise KeysRefused(f"it answers no JWKS of at most {MOST_KEYS} keys")
    found: dict[tuple[str, str], jwt.PyJWK] = {}
    for each in listed:
        if not isinstance(each, dict) or not isinstance(each.get("kid"), str):
            continue
        for algorithm in algorithms:
            if fits(each, algorithm) and (key := _loaded(each, algorithm)) is not None:
                found.setdefault((each["kid"], algorithm), key)
    if not found:
        raise KeysRefused("none of its keys fits the algorithms that the settings allow")
    return found


def fits(key: Mapping[str, object], algorithm: Algorithm) -> bool:
    """Whether a published key may check signatures of an algorithm. One that shows its private half may not."""
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

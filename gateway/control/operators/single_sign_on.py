"""Sign-in with an identity provider: OpenID Connect with an authorization code, PKCE, state and nonce.

The browser keeps state, nonce and verifier in a signed cookie for ten minutes. Nothing is stored until a state is used,
so unauthenticated attempts cannot fill the store. A code is sent once: a replayed response, or one that belongs to
another browser, is rejected before the provider is asked."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
from jwt.utils import base64url_decode, base64url_encode
from redis.asyncio import Redis

from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.control.operators.operator import Operator, Role
from fairlane.gateway.control.operators.settings import SignInSection
from fairlane.gateway.errors import ApiError, invalid_token
from fairlane.gateway.identity.signing_keys import AnswerRefused, ask
from fairlane.gateway.identity.tokens import Verifier, texts
from fairlane.quotas.field_checks import LONGEST_TEXT

LASTS_S = 600.0
EXCHANGE_TIMEOUT_S = 10.0
MOST_EXCHANGES = 8
LONGEST_COOKIE = 1_024
LONGEST_CODE = 4_096
USED = "fl:sign-in:"


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A sign-in in progress, as kept by the browser."""

    state: str
    nonce: str
    verifier: str
    at_s: float


class _TokenAnswer(msgspec.Struct):
    id_token: str


class SingleSignOn:
    """Sign-in with one identity provider. For one event loop."""

    def __init__(
        self, client: Redis, admin_keys: AdminKeys, section: SignInSection, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.section = section
        self._verifier = Verifier(section, (section.client_id,))
        self.keys = self._verifier.keys
        self._client = client
        self._admin_keys = admin_keys
        self._clock = clock
        self._exchanging = asyncio.Semaphore(MOST_EXCHANGES)

    async def begin(self) -> tuple[str, str]:
        attempt = Attempt(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), self._clock()
        )
        section = self.section
        asked = {
            "response_type": "code",
            "client_id": section.client_id,
            "redirect_uri": section.redirect_url,
            "scope": " ".join(section.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": base64url_encode(hashlib.sha256(attempt.verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in section.authorize_url else "?"
        body = msgspec.msgpack.encode(attempt)
        signed = b".".join([base64url_encode(body), base64url_encode(await self._signature(body))])
        return section.authorize_url + joint + urlencode(asked), signed.decode()

    async def complete(self, cookie: str, answer: Mapping[str, str]) -> Operator:
        """Finish a sign-in, from the browser's cookie and the provider's response, and return the operator.

        Raises ApiError: `invalid_token` if it was forged, replayed, late or rejected by the provider;
        `role_not_allowed`; `issuer_unavailable`; as `Verifier.claims`. Raises redis.RedisError."""
        attempt = await self._attempt(cookie)
        code, state = answer.get("code", ""), answer.get("state", "")
        if not hmac.compare_digest(state.encode(), attempt.state.encode()):
            raise invalid_token()
        if answer.get("iss", self.section.issuer) != self.section.issuer or not 0 < len(code) <= LONGEST_CODE:
            raise invalid_token()
        place = USED + hashlib.sha256(state.encode()).hexdigest()
        use = secrets.token_hex(16)
        is_first = await self._client.set(place, use, nx=True, ex=round(2 * LASTS_S))
        if not is_first and await self._client.get(place) not in (use, use.encode()):  # the call may have been resent
            raise invalid_token()
        claims = await self._verifier.claims(await self._exchange(code, attempt.verifier))
        nonce, sub = claims.get("nonce"), claims.get("sub")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), attempt.nonce.encode()):
            raise invalid_token()
        if claims.get("azp", self.section.client_id) != self.section.client_id or not isinstance(sub, str):
            raise invalid_token()
        return self._operator(claims, sub)

    def _operator(self, claims: Mapping[str, Any], sub: str) -> Operator:
        section = self.section
        known = [section.roles[each] for each in texts(claims, section.roles_claim) if each in section.roles]
        if not known:
            raise ApiError("Your identity provider does not grant you a role in this console.", "role_not_allowed")
        is_proven = section.name_claim != "email" or claims.get("email_verified", True) is True
        named = texts(claims, section.name_claim) if is_proven else []
        said = [each for each in (*named, sub) if each.isprintable() and each.strip()]
        if not said:
            raise invalid_token()
        return Operator(name=said[0][:LONGEST_TEXT], role=max(known, key=list(Role).index), kind="user")

    async def _attempt(self, cookie: str) -> Attempt:
        body, _, signature = cookie.partition(".")
        try:
            raw, signed = base64url_decode(body), base64url_decode(signature)
            attempt = msgspec.msgpack.decode(raw, type=Attempt)
        except ValueError:
            raise invalid_token() from None
        known = await self._signature(raw)
        if len(cookie) > LONGEST_COOKIE or not hmac.compare_digest(signed, known):
            raise invalid_token()
        if not 0 <= self._clock() - attempt.at_s + self.section.leeway_s <= LASTS_S + self.section.leeway_s:
            raise invalid_token()
        return attempt

    async def _signature(self, body: bytes) -> bytes:
        key = await self._admin_keys.fingerprint() + self.section.client_secret.encode()
        return hmac.digest(hashlib.sha256(b"sign-in" + key).digest(), body, "sha256")

    async def _exchange(self, code: str, verifier: str) -> str:
        section = self.section
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": section.redirect_url,
            "client_id": section.client_id,
            "code_verifier": verifier,
        }
        shown = httpx.BasicAuth(section.client_id, section.client_secret) if section.client_secret else None
        try:
            async with self._exchanging:
                status, body = await ask("POST", section.token_url, EXCHANGE_TIMEOUT_S, form=form, auth=shown)
        except (AnswerRefused, httpx.HTTPError, TimeoutError, OSError):
            raise _unavailable() from None
        if status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _unavailable()
        if status != httpx.codes.OK:
            raise invalid_token()
        try:
            return msgspec.json.decode(body, type=_TokenAnswer).id_token
        except (ValueError, RecursionError):
            raise invalid_token() from None


def _unavailable() -> ApiError:
    return ApiError("The identity provider does not answer.", "issuer_unavailable", retry_after_s=5.0)


def settings_digest(section: SignInSection) -> bytes:
    """Return a digest of the settings that admit users: when they change, users' sessions end."""
    claims = section.name_claim, section.roles_claim, sorted(section.roles.items())
    return hashlib.sha256(msgspec.json.encode((section.issuer, section.client_id, *claims))).digest()

"""Extracts a request's credentials: a key or token, and the tenant named by a gateway in front."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from fairlane.gateway.errors import identity_conflict, invalid, invalid_api_key, invalid_token
from fairlane.gateway.http.connections import holder_of
from fairlane.gateway.http.exchange import peer_of
from fairlane.gateway.identity.tokens import LONGEST_TOKEN, is_token
from fairlane.quotas.api_keys import is_imported, public_id
from fairlane.quotas.tenants import TENANT_ID
from fairlane.scheduler.protocol.settings import Networks

log = logging.getLogger(__name__)

Headers = Iterable[tuple[bytes, bytes]]
_BEARER = "bearer"
# Anthropic's header and Azure's.
_KEY_HEADERS = b"x-api-key", b"api-key"
LONGEST_KEY = 512
MOST_LOGGED_PEERS = 16


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one request."""

    secret: str = field(repr=False)
    # A second key, in the format of other software. It is ignored unless it was imported.
    also: str = field(default="", repr=False)
    tenant: str = ""


class CredentialReader:
    """Reads credentials from a request's headers."""

    def __init__(
        self, *, header: str = "x-fairlane-tenant", peers: Networks | None = None, takes_tokens: bool = False
    ) -> None:
        """`header` names a tenant. It is accepted from `peers` only."""
        self._header = header.encode()
        self._peers = peers or Networks()
        self._takes_tokens = takes_tokens
        self._logged: set[str] = set()

    def read(self, scope: Scope) -> Credentials:
        """Return the credentials of a request.

        Raises ApiError: `invalid_api_key`, `identity_conflict`, `invalid_request_error` for a malformed tenant header.
        """
        own = self._header
        authorization, keys, named = [], [], []
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization.append(value)
            elif name in _KEY_HEADERS:
                keys.append((name, value))
            elif name == own:
                named.append(value)
        tenant = self._tenant(named, scope) if named else ""
        if not authorization:
            return Credentials(self._checked(_one(_agreed(keys))), "", tenant)
        secret, also = self._checked(_bearer(authorization)), ""
        for _, value in keys:
            other = value.decode("latin-1").strip()
            if other == secret:
                continue
            is_identity = public_id(other) is not None or (self._takes_tokens and is_token(other))
            if is_identity or (also and other != also):
                raise identity_conflict()
            also = other if is_imported(other) else also
        return Credentials(secret, also, tenant)

    def _tenant(self, named: Sequence[bytes], scope: Scope) -> str:
        peer = peer_of(scope)
        if peer not in self._peers:
            self._warn(peer)
            return ""
        found = {value.decode("latin-1").strip() for value in named}
        if len(found) != 1:
            raise identity_conflict()
        tenant = found.pop()
        if not TENANT_ID.fullmatch(tenant):
            raise invalid(self._header.decode(), "This header must name one tenant by its id.")
        return tenant

    def _warn(self, peer: str) -> None:
        holder = holder_of(peer)
        if holder not in self._logged and len(self._logged) < MOST_LOGGED_PEERS:
            self._logged.add(holder)
            name, where = self._header.decode(), holder or "a peer without an address"
            log.warning("%s is ignored from %s: gateway.tenant_header_peers does not list it", name, where)

    def _checked(self, secret: str) -> str:
        if self._takes_tokens and is_token(secret):
            if len(secret) > LONGEST_TOKEN:
                raise invalid_token()
        elif len(secret) > LONGEST_KEY:
            raise invalid_api_key()
        return secret


def bearer(headers: Headers) -> str:
    """Return the key of the one `Authorization: Bearer` header. Raises ApiError `invalid_api_key`."""
    secret = _bearer([value for name, value in headers if name == b"authorization"])
    if len(secret) > LONGEST_KEY:
        raise invalid_api_key()
    return secret


def _bearer(given: Sequence[bytes]) -> str:
    scheme, _, secret = _one(given).partition(" ")
    secret = secret.lstrip()
    if scheme.lower() != _BEARER or not secret:
        raise invalid_api_key()
    return secret


def _agreed(keys: Sequence[tuple[bytes, bytes]]) -> Sequence[bytes]:
    """Return the values of the key headers; one value if both headers carry it."""
    by_name = dict(keys)
    return [*set(by_name.values())] if len(by_name) == len(keys) else ()


def _one(given: Sequence[bytes]) -> str:
    text = given[0].decode("latin-1").strip() if len(given) == 1 else ""
    if not text or not text.isascii():
        raise invalid_api_key()
    return text

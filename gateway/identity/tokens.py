"""Verification of tokens (RFC 7519, RFC 8725), and the mapping of their claims to a tenant and a group.

Until its signature is verified, a token only selects among configured values: an issuer, and a key that this issuer
published for this algorithm. No part of a token appears in logs or messages."""

import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import jwt

from fairlane.gateway.errors import ApiError, invalid_token, tenant_not_allowed
from fairlane.gateway.identity.settings import ClaimPath, GroupSection, IssuerSection, SignerSection
from fairlane.gateway.identity.signing_keys import SigningKeys
from fairlane.quotas.api_keys import is_imported
from fairlane.quotas.delegated_keys import Delegation

PARTS = 3
LONGEST_TOKEN = 16 * 1024
# Encoded in base64.
LONGEST_HEADER = 2 * 1024
LONGEST_KID = 256
MOST_VALUES = 1_000
# Header fields that refer to a key, contain one, or require unsupported extensions.
REFUSED_HEADERS = frozenset({"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"})
# Types of tokens that identify a caller. Issuers also sign others, such as `logout+jwt`, for other purposes.
TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
REQUIRED = ["exp", "iss", "aud"]

_MALFORMED = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class Tokens:
    """Verifies tokens of all configured issuers."""

    def __init__(self, issuers: Sequence[IssuerSection]) -> None:
        self._issuers = {each.issuer: (each, Verifier(each, each.audience)) for each in issuers}

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return [verifier.keys.run() for _, verifier in self._issuers.values()]

    async def delegation(self, token: str) -> Delegation:
        """Verify a token and return its tenant, limits and scopes.

        Raises ApiError: `tenant_not_allowed`, and as `Verifier.claims` does."""
        _, issuer = _read(token)
        if issuer not in self._issuers:
            raise invalid_token()
        section, verifier = self._issuers[issuer]
        return delegation_of(await verifier.claims(token), section)


class Verifier:
    """Verifies tokens of one issuer. For one event loop."""

    def __init__(self, issuer: SignerSection, audience: Sequence[str]) -> None:
        self.keys = SigningKeys(issuer)
        self._issuer = issuer
        self._audience = audience

    async def claims(self, token: str) -> dict[str, Any]:
        """Verify a token and return its claims.

        Raises ApiError: `invalid_token`, `token_expired`, `token_not_yet_valid`, `wrong_audience`,
        `unknown_signing_key`, `issuer_unavailable`."""
        header, named = _read(token)
        issuer, algorithm, kid = self._issuer, header.get("alg"), header.get("kid")
        if named != issuer.issuer or algorithm not in issuer.algorithms:
            raise invalid_token()
        if not isinstance(kid, str) or not 0 < len(kid) <= LONGEST_KID:
            raise invalid_token()
        key = await self.keys.of(kid, algorithm)
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=issuer.issuer,
                leeway=issuer.leeway_s,
                options={"require": REQUIRED},
            )
        except jwt.ExpiredSignatureError:
            raise ApiError("The token has expired.", "token_expired") from None
        except jwt.ImmatureSignatureError:
            dates = _unverified(token)
            valid_from_s = max(float(dates.get(name, 0.0)) for name in ("nbf", "iat"))
            wait_s = valid_from_s - issuer.leeway_s - time.time()
            message = "The token is not valid yet."
            raise ApiError(message, "token_not_yet_valid", retry_after_s=max(1.0, wait_s)) from None
        except jwt.InvalidAudienceError:
            raise ApiError("The token's audience is not this gateway.", "wrong_audience") from None
        except _MALFORMED:
            raise invalid_token() from None
        return claims


def is_token(credential: str) -> bool:
    """Return whether a credential has the form of a token. API keys have no dots; imported keys are excluded."""
    return credential.count(".") >= PARTS - 1 and not is_imported(credential)


def _read(token: str) -> tuple[dict[str, Any], str]:
    parts = token.split(".", PARTS)
    if len(token) > LONGEST_TOKEN or len(parts) != PARTS or len(parts[0]) > LONGEST_HEADER:
        raise invalid_token()
    try:
        header, issuer = jwt.get_unverified_header(token), _unverified(token).get("iss")
    except _MALFORMED:
        raise invalid_token() from None
    kind = header.get("typ", "")
    if not REFUSED_HEADERS.isdisjoint(header) or not isinstance(kind, str) or kind.lower() not in TYPES:
        raise invalid_token()
    if not isinstance(issuer, str):
        raise invalid_token()
    return header, issuer


def _unverified(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def delegation_of(claims: Mapping[str, Any], issuer: IssuerSection) -> Delegation:
    """Map verified claims to a tenant and the limits of the token's first listed group.

    Raises ApiError `tenant_not_allowed` for no tenant, several tenants, or none of the listed groups."""
    tenants = {issuer.tenants[each] for each in texts(claims, issuer.tenant_claim) if each in issuer.tenants}
    if len(tenants) != 1:
        raise tenant_not_allowed()
    group: GroupSection | None = None
    if issuer.groups:
        held = frozenset(texts(claims, issuer.groups_claim))
        group = next((each for each in issuer.groups if each.group in held), None)
        if group is None:
            raise tenant_not_allowed()
    limits, scopes = issuer.terms_of(group)
    via = f"issuer:{issuer.name}" + (f"/{group.group}" if group else "")
    return Delegation(via=via, tenant=tenants.pop(), limits=limits, scopes=scopes)


def texts(claims: Mapping[str, Any], path: ClaimPath) -> list[str]:
    """Return the strings of a claim, which is a string or a list; empty for anything else."""
    found: Any = claims
    for name in (path,) if isinstance(path, str) else path:
        found = found.get(name) if isinstance(found, dict) else None
    listed = [found] if isinstance(found, str) else found
    if not isinstance(listed, list) or len(listed) > MOST_VALUES:
        return []
    return [each for each in listed if isinstance(each, str)]

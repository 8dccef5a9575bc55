"""Verification of tokens (RFC 7519, RFC 8725), and the mapping of their claims to a tenant and a group.

    size, three parts ──> header: a configured alg, a kid, nothing that refers to a key ──> iss: a configured issuer
      ──> the issuer's key for (kid, alg) ──> signature, exp, nbf, iat, iss, aud ──> claim → tenant, groups → limits

Until its signature is verified, a token only selects among configured values: an issuer, and a key that this issuer
published for this algorithm. No part of a token appears in logs or messages."""

import base64
import binascii
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import jwt
import msgspec

from fairlane.gateway.errors import ApiError, invalid_token, tenant_not_allowed
from fairlane.gateway.identity.settings import ClaimPath, GroupSection, IssuerSection, Signer
from fairlane.gateway.identity.signing_keys import SigningKeys
from fairlane.quotas.api_keys import is_imported
from fairlane.quotas.delegated_keys import Delegation

PARTS = 3
LONGEST_TOKEN = 16 * 1024
# Encoded in base64.
LONGEST_HEADER = 2 * 1024
LONGEST_KID = 256
# Longest list in a claim.
MOST_VALUES = 1_000
# Header fields that refer to a key, contain one, or require unsupported extensions.
REFUSED_HEADERS = frozenset({"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"})
# Types of tokens that identify a caller. Issuers also sign others, such as `logout+jwt`, for other purposes.
TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
REQUIRED = ["exp", "iss", "aud"]

T = TypeVar("T")


class _Issued(msgspec.Struct):
    iss: str


class _Issuer:
    def __init__(self, section: IssuerSection) -> None:
        self.section = section
        self.keys = SigningKeys(section)


class Tokens:
    """Verifies tokens of all configured issuers."""

    def __init__(self, issuers: Sequence[IssuerSection]) -> None:
        self._issuers = {each.issuer: _Issuer(each) for each in issuers}

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        return [each.keys.run() for each in self._issuers.values()]

    async def delegation(self, token: str) -> Delegation:
        """Verify a token and return its tenant, limits and scopes.

        Raises ApiError: `invalid_token`, `token_expired`, `token_not_yet_valid`, `wrong_audience`,
        `unknown_signing_key`, `issuer_unavailable`, `tenant_not_allowed`."""
        header, issued = _read(token)
        issuer = self._issuers.get(issued.iss)
        if issuer is None:
            raise invalid_token()
        return delegation_of(await _claims(token, header, issuer.section, issuer.keys), issuer.section)


async def claims_of(token: str, issuer: Signer, keys: SigningKeys) -> dict[str, Any]:
    """Verify a token of this issuer and return its claims. Raises ApiError as `Tokens.delegation` does."""
    header, issued = _read(token)
    if issued.iss != issuer.issuer:
        raise invalid_token()
    return await _claims(token, header, issuer, keys)


async def _claims(token: str, header: Mapping[str, Any], issuer: Signer, keys: SigningKeys) -> dict[str, Any]:
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in issuer.algorithms or not isinstance(kid, str) or not 0 < len(kid) <= LONGEST_KID:
        raise invalid_token()
    return verified(token, await keys.of(kid, algorithm), issuer)


def is_token(credential: str) -> bool:
    """Return whether a credential has the form of a token. API keys have no dots; imported keys are excluded."""
    return credential.count(".") >= PARTS - 1 and not is_imported(credential)


def _read(token: str) -> tuple[dict[str, Any], _Issued]:
    parts = token.split(".", PARTS)
    if len(token) > LONGEST_TOKEN or len(parts) != PARTS or len(parts[0]) > LONGEST_HEADER:
        raise invalid_token()
    header = _json(parts[0], dict[str, Any])
    said = header.get("typ", "")
    if not REFUSED_HEADERS.isdisjoint(header) or not isinstance(said, str) or said.lower() not in TYPES:
        raise invalid_token()
    return header, _json(parts[1], _Issued)


def _json(part: str, kind: type[T]) -> T:
    with suppress(ValueError, RecursionError, binascii.Error):
        return msgspec.json.decode(base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True), type=kind)
    raise invalid_token()


def verified(token: str, key: jwt.PyJWK, issuer: Signer) -> dict[str, Any]:
    """Verify signature, issuer, audience and times with a key, and return the claims. Raises ApiError."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=issuer.leeway_s,
            options={"require": REQUIRED},
        )
    except jwt.ExpiredSignatureError:
        raise ApiError("The token has expired.", "token_expired") from None
    except jwt.ImmatureSignatureError:
        raise ApiError(
            "The token is not valid yet.", "token_not_yet_valid", retry_after_s=_until_valid_s(token, issuer)
        ) from None
    except jwt.InvalidAudienceError:
        raise ApiError("The token's audience is not this gateway.", "wrong_audience") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise invalid_token() from None
    return claims


def _until_valid_s(token: str, issuer: Signer) -> float:
    claims = jwt.decode(token, options={"verify_signature": False})
    begins_s = max(float(claims.get(name, 0.0)) for name in ("nbf", "iat"))
    return max(1.0, begins_s - issuer.leeway_s - time.time())


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

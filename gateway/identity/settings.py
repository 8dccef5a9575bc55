"""Settings of the accepted token issuers, and their validation at startup."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from fairlane.common.settings_error import SettingsError
from fairlane.quotas.api_keys import Scopes
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import Limits
from fairlane.quotas.tenants import TENANT_ID

# Asymmetric algorithms only: with a symmetric one, anyone who can verify a token can also sign one.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
# A claim's name, which may contain any characters; or a path of names from the outermost object inwards.
ClaimPath = str | tuple[str, ...]
Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
HEADER = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
TAKEN_HEADERS = frozenset(
    {"authorization", "x-api-key", "api-key", "host", "cookie", "x-forwarded-for", "idempotency-key"}
)
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class SignerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signer of tokens, and how its signatures are verified: an issuer for tenants, or the operators' sign-in."""

    issuer: str
    jwks_url: str
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1, max_length=10)]
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    # Interval between fetches of the keys.
    refresh_s: Annotated[float, msgspec.Meta(ge=60, le=86_400)] = 300.0
    # How long keys are accepted after their last successful fetch.
    stale_s: Annotated[float, msgspec.Meta(ge=60, le=30 * 86_400)] = 86_400.0


class GroupSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of an issuer, with its limits and scopes in each of the issuer's tenants."""

    group: Text
    # For all members of the group in one tenant together, in addition to the tenant's own limits.
    limits: dict[str, int | None] = {}
    scopes: dict[str, list[str]] = {}


class IssuerSection(SignerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One issuer: an entry of `gateway.issuers`."""

    # Used in keys, usage and logs. Renaming an issuer creates new keys.
    name: Name
    issuer: Text
    jwks_url: Text
    audience: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=16)]
    tenant_claim: ClaimPath
    # Maps values of the claim to tenants. Other values are rejected.
    tenants: Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=10_000)]
    groups_claim: ClaimPath = "groups"
    # A token belongs to the first of these that it names. If any are listed, a token without one of them is rejected.
    groups: Annotated[tuple[GroupSection, ...], msgspec.Meta(max_length=1_000)] = ()

    def terms_of(self, group: GroupSection | None) -> tuple[Limits, Scopes]:
        if group is None:
            return Limits(), Scopes()
        scopes: dict[str, Any] = dict(group.scopes)
        if "act_as" in scopes:
            raise FieldError("scopes.act_as", "only a key may act for tenants")
        return Limits.parse(group.limits), Scopes.parse(scopes)


def check_issuers(issuers: Sequence[IssuerSection]) -> None:
    """Validate what the types cannot express. Raises SettingsError."""
    for place, each in enumerate(issuers):
        field = f"setting gateway.issuers[{place}]"
        if each.issuer in {other.issuer for other in issuers[:place]}:
            raise SettingsError(f"{field}.issuer: is listed twice")
        if each.name in {other.name for other in issuers[:place]}:
            raise SettingsError(f"{field}.name: is another issuer's")
        if not is_safe(each.jwks_url):
            raise SettingsError(f"{field}.jwks_url: must begin with https://, or be http:// on this machine")
        if not all(map(TENANT_ID.fullmatch, each.tenants.values())):
            raise SettingsError(f"{field}.tenants: must name tenants by their ids")
        if not (each.tenant_claim and each.groups_claim):
            raise SettingsError(f"{field}: tenant_claim and groups_claim cannot be empty")
        for number, group in enumerate(each.groups):
            try:
                each.terms_of(group)
            except FieldError as error:
                raise SettingsError(f"{field}.groups[{number}].{error.field}: {error.rule}") from None


def check_header(name: str) -> None:
    """Check the name of the tenant header. Raises SettingsError."""
    if not HEADER.fullmatch(name) or name in TAKEN_HEADERS:
        raise SettingsError("setting gateway.tenant_header: must be a lower-case header without another meaning")


def is_safe(url: str) -> bool:
    """Return whether keys from a URL cannot be replaced in transit: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOCAL_HOSTS)

"""The issuers whose tokens are taken, as the settings state them, and their check at the start."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from fairlane.quotas.api_keys import Scopes
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import Limits
from fairlane.quotas.tenants import TENANT_ID
from fairlane.scheduler.protocol.settings import SettingsError

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric ones alone: with the others whoever can check a token can make one."""
ClaimPath = str | tuple[str, ...]
"""A claim's name, whatever characters it has; or the names from an outer object to an inner one."""
Name = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
HEADER = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
TAKEN_HEADERS = frozenset({"authorization", "x-api-key", "host", "cookie", "x-forwarded-for", "idempotency-key"})
"""What has a meaning of its own."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Signer(Protocol):
    """Whoever signs tokens, and how its signatures are checked: an issuer of tenants' tokens, or of operators'."""

    @property
    def name(self) -> str:
        """In logs."""

    @property
    def issuer(self) -> str:
        """As `iss` has it, to the letter."""

    @property
    def jwks_url(self) -> str:
        """Where its public keys are."""

    @property
    def audience(self) -> tuple[str, ...]:
        """One of which `aud` must name."""

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """That it may sign with."""

    @property
    def leeway_s(self) -> float:
        """How far its clock and ours may be apart."""

    @property
    def refresh_s(self) -> float:
        """How often its keys are read again."""

    @property
    def stale_s(self) -> float:
        """How long keys are taken that could not be read again."""


class GroupSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of an issuer's, in each of its tenants."""

    group: Text
    """As the claim has it."""
    limits: dict[str, int | None] = {}
    """Of all its members together in one tenant, beside the tenant's own."""
    scopes: dict[str, list[str]] = {}
    """`models`, `lanes`, `endpoints`, `cidrs`, as a key has them."""


class IssuerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One issuer: an entry of `gateway.issuers`."""

    name: Name
    """Ours, for keys, usage and logs. A new name makes new keys."""
    issuer: Text
    """As `iss` has it, to the letter."""
    jwks_url: Text
    """Where its public keys are: https, or http on this machine."""
    audience: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=16)]
    """One of which `aud` must name."""
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1, max_length=10)]
    tenant_claim: ClaimPath
    tenants: Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=10_000)]
    """The claim's value → tenant. What is not listed has none."""
    groups_claim: ClaimPath = "groups"
    groups: Annotated[tuple[GroupSection, ...], msgspec.Meta(max_length=1_000)] = ()
    """The first of these that a token has is its group. Where some are listed, a token with none of them is refused."""
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    """How far its clock and ours may be apart."""
    refresh_s: Annotated[float, msgspec.Meta(ge=60, le=86_400)] = 300.0
    """How often its keys are read again."""
    stale_s: Annotated[float, msgspec.Meta(ge=60, le=30 * 86_400)] = 86_400.0
    """How long keys are taken that could not be read again."""

    def terms_of(self, group: GroupSection | None) -> tuple[Limits, Scopes]:
        """What a group's members may. Raises FieldError."""
        if group is None:
            return Limits(), Scopes()
        scopes: dict[str, Any] = dict(group.scopes)
        if "act_as" in scopes:
            raise FieldError("scopes.act_as", "only a key may act for tenants")
        return Limits.parse(group.limits), Scopes.parse(scopes)


def check_issuers(issuers: Sequence[IssuerSection]) -> None:
    """What the types do not say of them. Raises SettingsError."""
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
    """Of a header that names a tenant. Raises SettingsError."""
    if not HEADER.fullmatch(name) or name in TAKEN_HEADERS:
        raise SettingsError("setting gateway.tenant_header: must be a header of its own, in small letters")


def is_safe(url: str) -> bool:
    """Nobody between us and the issuer can put keys of his own in place of its keys."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOCAL_HOSTS)

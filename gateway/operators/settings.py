"""The identity provider by which operators sign in to the console, as the settings state it; its check at the start."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from fairlane.gateway.identity.settings import Algorithm, ClaimPath, is_safe
from fairlane.gateway.operators.operator import Role
from fairlane.scheduler.protocol.settings import SettingsError

CALLBACK = "/console/callback"
Short = Annotated[str, msgspec.Meta(max_length=500)]


class SignInSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`gateway.sign_in`: OpenID Connect with an authorization code and PKCE."""

    title: Annotated[str, msgspec.Meta(min_length=1, max_length=60)] = "your identity provider"
    """Its name, as the sign-in says it."""
    issuer: Short = ""
    """As `iss` has it, to the letter; empty: operators sign in by a key or token alone."""
    client_id: Short = ""
    client_secret: Short = ""
    """Empty: it knows the console as a public client, by PKCE alone."""
    authorize_url: Short = ""
    token_url: Short = ""
    jwks_url: Short = ""
    """Where it asks the user, gives tokens for a code, and has its public keys: https, or http on this machine."""
    redirect_url: Short = ""
    """Where it sends the user back: the console as browsers see it, and `/console/callback`."""
    scopes: Annotated[tuple[Short, ...], msgspec.Meta(max_length=32)] = ("openid", "profile", "email")
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1, max_length=10)] = ("RS256",)
    name_claim: ClaimPath = "email"
    """What the audit log calls the user; `sub` where there is none, or an email that is not verified."""
    roles_claim: ClaimPath = "groups"
    roles: Annotated[dict[str, Role], msgspec.Meta(max_length=1_000)] = {}
    """The claim's value → role; of several the one that may most. A user with none of them is refused."""
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    """How far its clock and ours may be apart."""
    refresh_s: Annotated[float, msgspec.Meta(ge=60, le=86_400)] = 300.0
    """How often its keys are read again."""
    stale_s: Annotated[float, msgspec.Meta(ge=60, le=30 * 86_400)] = 86_400.0
    """How long keys are taken that could not be read again."""

    @property
    def name(self) -> str:
        """In logs."""
        return "of the console's sign-in"

    @property
    def audience(self) -> tuple[str, ...]:
        """Whom its tokens are for."""
        return (self.client_id,)


def check_sign_in(section: SignInSection) -> None:
    """What the types do not say of it. Raises SettingsError."""
    if not section.issuer:
        return
    for field in ("authorize_url", "token_url", "jwks_url", "redirect_url"):
        if not is_safe(getattr(section, field)):
            raise SettingsError(
                f"setting gateway.sign_in.{field}: must begin with https://, or be http:// on this machine"
            )
    if urlsplit(section.redirect_url).path != CALLBACK:
        raise SettingsError(f"setting gateway.sign_in.redirect_url: must end with {CALLBACK}")
    if not section.client_id:
        raise SettingsError("setting gateway.sign_in.client_id: must name this client of the identity provider")
    if "openid" not in section.scopes:
        raise SettingsError("setting gateway.sign_in.scopes: must have openid among them")
    if not section.roles:
        raise SettingsError("setting gateway.sign_in.roles: must give a role to one group at least")
    if not (section.name_claim and section.roles_claim):
        raise SettingsError("setting gateway.sign_in: name_claim and roles_claim cannot be empty")

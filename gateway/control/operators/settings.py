"""Settings of the identity provider for the console's sign-in, and their validation at startup."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from fairlane.common.settings_error import SettingsError
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.identity.settings import Algorithm, ClaimPath, SignerSection, is_safe

CALLBACK = "/console/callback"
Short = Annotated[str, msgspec.Meta(max_length=500)]


class SignInSection(SignerSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`gateway.sign_in`: OpenID Connect with an authorization code and PKCE."""

    # Its name on the sign-in page.
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=60)] = "your identity provider"
    # Empty: no sign-in with an identity provider.
    issuer: Short = ""
    client_id: Short = ""
    # Empty for a public client, which uses PKCE alone.
    client_secret: Short = ""
    # The provider's endpoints; https, or http on this machine.
    authorize_url: Short = ""
    token_url: Short = ""
    jwks_url: Short = ""
    # The console's callback as browsers see it; its path is `/console/callback`, below `root_path`.
    redirect_url: Short = ""
    scopes: Annotated[tuple[Short, ...], msgspec.Meta(max_length=32)] = ("openid", "profile", "email")
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1, max_length=10)] = ("RS256",)
    # Name of the user in the audit log. `sub` is used if it is missing, or an email that is not verified.
    name_claim: ClaimPath = "email"
    roles_claim: ClaimPath = "groups"
    # Maps values of the claim to roles; the highest counts. A user without any of them is rejected.
    roles: Annotated[dict[str, Role], msgspec.Meta(max_length=1_000)] = msgspec.field(default_factory=dict)


def check_sign_in(section: SignInSection, root_path: str = "") -> None:
    """Validate what the types cannot express. `root_path` is the prefix of all paths. Raises SettingsError."""
    if not section.issuer:
        return
    for field in ("authorize_url", "token_url", "jwks_url", "redirect_url"):
        if not is_safe(getattr(section, field)):
            raise SettingsError(
                f"setting gateway.sign_in.{field}: must begin with https://, or be http:// on this machine"
            )
    if urlsplit(section.redirect_url).path != root_path + CALLBACK:
        raise SettingsError(f"setting gateway.sign_in.redirect_url: its path must be {root_path}{CALLBACK}")
    if not section.client_id:
        raise SettingsError("setting gateway.sign_in.client_id: must be the id under which this client is registered")
    if "openid" not in section.scopes:
        raise SettingsError("setting gateway.sign_in.scopes: must include openid")
    if not section.roles:
        raise SettingsError("setting gateway.sign_in.roles: must give at least one group a role")
    if not (section.name_claim and section.roles_claim):
        raise SettingsError("setting gateway.sign_in: name_claim and roles_claim cannot be empty")

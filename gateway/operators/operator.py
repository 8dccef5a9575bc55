"""A named operator and a role."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Kind = Literal["key", "token", "user"]
"""Who shows it: the admin key, a token, or a user of an identity provider."""
ADMIN = "admin"
"""The name of who holds the admin key: there is one, and who that is is not known here."""


class Role(StrEnum):
    """What an operator may do; each may what those before it may."""

    VIEWER = "viewer"
    """Reads."""
    OPERATOR = "operator"
    """Also drains workers, suspends tenants, and changes tenants, limits and keys."""
    OWNER = "owner"
    """Everything: also makes and deletes tenants, and names operators."""

    def includes(self, needed: "Role") -> bool:
        """Whether it may what the other may."""
        roles = list(Role)
        return roles.index(self) >= roles.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who makes a call."""

    name: str
    role: Role
    kind: Kind
    token: str = ""
    """Id of the token that was shown; empty: none was."""

    @property
    def actor(self) -> str:
        """As the audit log names it."""
        match self.kind:
            case "key":
                return ADMIN
            case "token":
                return f"token:{self.token}:{self.name}"
        return f"user:{self.name}"


OWNER = Operator(name=ADMIN, role=Role.OWNER, kind="key")
"""Who shows the admin key."""

"""Operators and their roles."""

from enum import StrEnum
from typing import Literal

import msgspec

Kind = Literal["key", "token", "user"]
# Name of the admin key's holder, whose identity is not known.
ADMIN = "admin"


class Role(StrEnum):
    """Roles of operators, in ascending order. Each includes those before it."""

    # Reads.
    VIEWER = "viewer"
    # Also drains workers, suspends tenants, and changes tenants, limits and keys.
    OPERATOR = "operator"
    # Also creates and deletes tenants, and manages operators.
    OWNER = "owner"

    def includes(self, needed: "Role") -> bool:
        roles = list(Role)
        return roles.index(self) >= roles.index(needed)


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated operator of a call."""

    name: str
    role: Role
    kind: Kind
    token: str = ""

    @property
    def actor(self) -> str:
        match self.kind:
            case "key":
                return ADMIN
            case "token":
                return f"token:{self.token}:{self.name}"
        return f"user:{self.name}"


OWNER = Operator(name=ADMIN, role=Role.OWNER, kind="key")

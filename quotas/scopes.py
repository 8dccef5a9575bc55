"""What an API key may be used for, within what its tenant may."""

import dataclasses
import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from quotas import fields
from quotas.fields import FieldError
from quotas.tenant_fields import LANES

_ENDPOINT = re.compile(r"/v1(/[^/]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """What a key may be used for; None: all that its tenant may."""

    models: tuple[str, ...] | None = None
    lanes: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    """Paths such as `/v1/chat/completions`, each with all below it."""
    cidrs: tuple[str, ...] | None = None
    """Networks that callers must come from."""

    @classmethod
    def parse(cls, value: object) -> "Scopes":
        """The scopes that a JSON object states; null is all. Raises FieldError."""
        stated = fields.document({} if value is None else value, "scopes", [f.name for f in dataclasses.fields(cls)])
        parsed: dict[str, tuple[str, ...]] = {}
        for name, listed in stated.items():
            if listed is not None:
                parsed[name] = fields.texts(listed, f"scopes.{name}", LANES if name == "lanes" else ())
        if not all(map(_ENDPOINT.fullmatch, parsed.get("endpoints", ()))):
            raise FieldError("scopes.endpoints", "must be paths such as /v1/chat/completions")
        try:
            networks = [str(ipaddress.ip_network(cidr)) for cidr in parsed.get("cidrs", ())]
        except ValueError:
            raise FieldError("scopes.cidrs", "must be networks such as 10.0.0.0/8") from None
        if "cidrs" in parsed:
            parsed["cidrs"] = tuple(networks)
        return cls(**parsed)

    def allows(self, scope: Literal["models", "lanes", "endpoints"], name: str) -> bool:
        """Whether a model, lane or endpoint is within."""
        allowed: tuple[str, ...] | None = getattr(self, scope)
        return allowed is None or name in allowed

    def allows_address(self, address: str) -> bool:
        """Whether a caller's IP address is within; text that is no address only where all are."""
        if self.cidrs is None:
            return True
        try:
            caller = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(caller, ipaddress.IPv6Address) and caller.ipv4_mapped is not None:
            caller = caller.ipv4_mapped
        return any(caller in ipaddress.ip_network(cidr) for cidr in self.cidrs)

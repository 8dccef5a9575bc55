"""Who stands behind an address, as far as limits by address can tell."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from fairlane.scheduler.protocol.settings import Networks

_OF_ONE_HOLDER = 64
"""Bits of an IPv6 address that are the network's: who has one address of it has all of them."""
_MOST_HOPS = 32
"""Of a forwarded request, that are looked at."""


@lru_cache(maxsize=65_536)
def holder_of(address: str) -> str:
    """What stands for an address where something is counted by address: itself, an IPv6 one's network of 64 bits.

    What is no address (a unix socket's peer) stands for itself.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), _OF_ONE_HOLDER), strict=False))


def forwarded_for(headers: Iterable[tuple[bytes, bytes]], proxies: Networks) -> str | None:
    """Whose request a trusted proxy forwards: the rightmost address of `x-forwarded-for` that is no trusted proxy's.

    None where it names none: what stands further left was written by somebody who is not trusted.
    """
    hops = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
    for hop in reversed(hops.rsplit(",", _MOST_HOPS)):
        address = _address(hop.strip())
        if address is None:
            return None
        if address not in proxies:
            return address
    return None


def _address(hop: str) -> str | None:
    """An address as proxies write it: bare, with a port, or an IPv6 one in brackets."""
    bare = hop[1:].partition("]")[0] if hop.startswith("[") else hop
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return None

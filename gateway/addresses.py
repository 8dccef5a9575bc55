"""Who stands behind an address, as far as limits by address can tell."""

import ipaddress
from functools import lru_cache

_OF_ONE_HOLDER = 64
"""Bits of an IPv6 address that are the network's: who has one address of it has all of them."""


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

"""Whether one key's scopes allow what another's do not."""

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from fairlane.quotas.api_keys import Scopes

Entry = str | tuple[int, int, int]


def _path_and_above(path: str) -> Iterable[Entry]:
    return [*accumulate(path.split("/"), "{}/{}".format)][::-1]


def _network_and_above(text: str) -> Iterable[Entry]:
    network = ipaddress.ip_network(text)
    first, bits = int(network.network_address), network.max_prefixlen
    return [(bits, length, first >> (bits - length)) for length in range(network.prefixlen, -1, -1)]


# For each scope: an entry, then all others that include it. The time is linear in the lists' lengths.
_COVERING: Mapping[str, Callable[[str], Iterable[Entry]]] = {
    **dict.fromkeys(("models", "lanes", "act_as"), lambda name: (name,)),
    "endpoints": _path_and_above,
    "cidrs": _network_and_above,
}


def exceeding(scopes: Scopes, other: Scopes) -> str | None:
    """Return the name of a scope that allows what `other` does not, or None."""
    for name, covering in _COVERING.items():
        own, wider = getattr(scopes, name), getattr(other, name)
        if name == "act_as":  # unlike the others, None allows none
            own, wider = own or (), wider or ()
        if wider is None:
            continue
        allowed = {next(iter(covering(each))) for each in wider}
        if own is None or any(allowed.isdisjoint(covering(each)) for each in own):
            return name
    return None

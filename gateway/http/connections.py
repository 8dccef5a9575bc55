"""Bounds on the connections of one port: per address, per caller and in total. A connection is unauthenticated until a
key is accepted on it. On a full port a new connection replaces the oldest unauthenticated one, else an idle one of
the caller with the most connections; a few more are accepted for health probes. A trusted proxy's connection is
unauthenticated again with each request, and counts for the address that the proxy names."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Protocol

from starlette.types import Scope

from fairlane.gateway.errors import ApiError
from fairlane.scheduler.protocol.settings import Networks

# Network bits of an IPv6 address: the owner of one address usually has the whole /64 network.
_IPV6_PREFIX_BITS = 64
# Maximum number of `x-forwarded-for` addresses to read, from the right.
_MOST_HOPS = 32


@lru_cache(maxsize=65_536)
def holder_of(address: str) -> str:
    """Return the name under which an address is counted: the /64 network of an IPv6 address, else itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), _IPV6_PREFIX_BITS), strict=False))


def forwarded_for(headers: Iterable[tuple[bytes, bytes]], proxies: Networks) -> str | None:
    """Return the rightmost address in `x-forwarded-for` that is not a trusted proxy's: its peer vouches for it."""
    hops = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
    for hop in reversed(hops.rsplit(",", _MOST_HOPS)):
        address = _address(hop.strip())
        if address is None:
            return None
        if address not in proxies:
            return address
    return None


def _address(hop: str) -> str | None:
    bare = hop[1:].partition("]")[0] if hop.startswith("[") else hop
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return None


OPERATORS = "*"
# Connections above the limit, for health probes.
RESERVED = 64
# Oldest connections examined to find an idle one.
_LOOKED_AT = 16


class HttpConnection(Protocol):
    """A connection that has a place."""

    def is_answering(self) -> bool: ...

    def give_way(self) -> None: ...


class Place:
    """One connection's place, held until it is closed."""

    __slots__ = ("_limiter", "connection", "holder", "is_spare", "is_stranger", "peer")

    def __init__(self, limiter: "ConnectionLimiter", connection: HttpConnection) -> None:
        self._limiter = limiter
        self.connection = connection
        # Unauthenticated: the counted address; else the caller. Empty: unknown.
        self.holder = ""
        self.is_stranger = False
        # Accepted when the port was full, for health probes.
        self.is_spare = False
        # The connection's own address, if a trusted proxy named another client in this request.
        self.peer: str | None = None

    @property
    def is_too_much(self) -> bool:
        return self.is_spare and self._limiter.count > self._limiter.most

    def carries(self, address: str) -> bool:
        """Assign the place to an address forwarded by a proxy. Return False if that address has too many already."""
        self._limiter.forget(self)
        return self._limiter.remember(self, holder_of(address), makes_room=False)

    def forwarded(self, scope: Scope, proxy: str, proxies: Networks) -> ApiError | None:
        """Take the client's address from a trusted proxy. Return an error if that address has too many connections."""
        address, self.peer = forwarded_for(scope["headers"], proxies), None
        if address is None:
            return None
        self.peer = proxy
        scope["client"] = (address, 0)
        if [value for name, value in scope["headers"] if name == b"x-forwarded-proto"] == [b"https"]:
            scope["scheme"] = "https"
        if self.carries(address):
            return None
        return ApiError("Too many connections from this address are open.", "overloaded", retry_after_s=1.0)

    def vouch(self, caller: str) -> None:
        if self.is_stranger or self.holder != caller:
            self._limiter.recognise(self, caller)

    def leave(self) -> None:
        self._limiter.leave(self)


class ConnectionLimiter:
    """All places of one port."""

    def __init__(self, *, most: int = 10_000, most_of_an_address: int = 1_024) -> None:
        """`most_of_an_address` limits unauthenticated connections only."""
        self.most = most
        self.gave_way = 0
        self.turned_away = 0
        self._most_of_an_address = most_of_an_address
        self._places: set[Place] = set()
        self._strangers: dict[Place, None] = {}
        self._by_holder: dict[str, dict[Place, None]] = {}
        self._by_caller: dict[str, dict[Place, None]] = {}

    @property
    def count(self) -> int:
        return len(self._places)

    def admits(self, address: str) -> bool:
        own = self._by_holder.get(holder_of(address), ())
        return len(own) < self._most_of_an_address and self.count < self.most + RESERVED

    def enter(self, connection: HttpConnection, address: str | None) -> Place | None:
        """Return a place for a new connection, if there is one. `address`: None for a proxy: no limit."""
        place = Place(self, connection)
        if len(self._places) >= self.most and not (self._make_room(self._strangers) or self._take_from_callers()):
            if self.count >= self.most + RESERVED:
                self.turned_away += 1
                return None
            place.is_spare = True
        self._places.add(place)
        self.remember(place, "" if address is None else holder_of(address), makes_room=True)
        return place

    def remember(self, place: Place, holder: str, *, makes_room: bool) -> bool:
        """Assign a place to an address. If that has too many, close one (`makes_room`) or return False."""
        if holder:
            own = self._by_holder.get(holder, ())
            if len(own) >= self._most_of_an_address and not (makes_room and self._make_room(own)):
                return False
            self._by_holder.setdefault(holder, {})[place] = None
        place.holder, place.is_stranger = holder, True
        self._strangers[place] = None
        return True

    def recognise(self, place: Place, caller: str) -> None:
        if place not in self._places:
            return
        self.forget(place)
        place.holder = caller
        self._by_caller.setdefault(caller, {})[place] = None

    def forget(self, place: Place) -> None:
        by = self._by_caller
        if place.is_stranger:
            by = self._by_holder
            del self._strangers[place]
        if place.holder:
            own = by[place.holder]
            del own[place]
            if not own:
                del by[place.holder]
        place.holder, place.is_stranger = "", False

    def leave(self, place: Place) -> None:
        self.forget(place)
        self._places.discard(place)

    def _make_room(self, strangers: Iterable[Place]) -> bool:
        oldest = list(islice(strangers, _LOOKED_AT))
        if not oldest:
            return False
        self._give_up(next((each for each in oldest if not each.connection.is_answering()), oldest[0]))
        return True

    def _take_from_callers(self) -> bool:
        own = max(self._by_caller.values(), key=len, default={})
        for place in list(islice(own, _LOOKED_AT)):
            if not place.connection.is_answering():
                self._give_up(place)
                return True
            own[place] = own.pop(place)  # so that other places are examined next time
        return False

    def _give_up(self, place: Place) -> None:
        self.leave(place)
        self.gave_way += 1
        place.connection.give_way()


class Heads:
    """The incomplete request heads of one port, bounded in bytes."""

    def __init__(self, *, most_bytes: int = 32 * 2**20) -> None:
        """`most_bytes` counts bytes received; parsed heads take half as much again."""
        self._most_bytes = most_bytes
        # Oldest first.
        self._held: dict[HttpConnection, int] = {}
        self.bytes = 0

    def hold(self, sender: HttpConnection, count: int) -> None:
        """Record the size of a head so far. Over the limit, the oldest senders are closed, possibly including
        `sender`."""
        self.bytes += count - self._held.get(sender, 0)
        self._held[sender] = count
        while self.bytes > self._most_bytes:
            first = next(iter(self._held))
            self.release(first)
            first.give_way()

    def release(self, sender: HttpConnection) -> None:
        if sender in self._held:
            self.bytes -= self._held.pop(sender)

"""The connections of one port: who may hold how many, and who goes when there are too many.

A connection is a stranger's until a key was recognised on it. Strangers' places are bounded for each address, and are
given up, the oldest first, for whoever comes when all are taken. Where no stranger is left to go, a connection on which
nothing is being answered goes, of the caller who has most of them. Where none is left, a few more are let in for the
probes, and told 429 for anything else.

Through a trusted proxy come many callers: such a connection is a stranger's again with each request, of the address
that the proxy names, and nobody's before the first.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Protocol

from starlette.types import Scope

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


STATE = "place"
"""Where the `state` of a scope has its connection's `Place`."""
PEER = "peer"
"""Where it has the address that the connection itself comes from, whomever a trusted proxy names."""
OPERATORS = "*"
"""The caller who has the admin key."""
RESERVED = 64
"""Connections beyond the most, for probes."""
_LOOKED_AT = 16
"""Of the oldest, to find one that is not being answered."""


class HttpConnection(Protocol):
    """What has a place."""

    def is_answering(self) -> bool:
        """A request of it is being answered."""

    def give_way(self) -> None:
        """Its place is another's: close."""


class Place:
    """One connection's place; left once it is closed."""

    __slots__ = ("_crowd", "connection", "holder", "is_spare", "is_stranger")

    def __init__(self, crowd: "Crowd", connection: HttpConnection) -> None:
        self._crowd = crowd
        self.connection = connection
        self.holder = ""
        """A stranger's: whose it is, as far as limits by address can tell; else the caller; empty: nobody known."""
        self.is_stranger = False
        self.is_spare = False
        """It came when all places were taken: for probes."""

    @property
    def is_too_much(self) -> bool:
        """It came when all places were taken, and they still are."""
        return self.is_spare and self._crowd.count > self._crowd.most

    def carries(self, address: str) -> bool:
        """A request of this address has come by a proxy; False where the address has too many already."""
        self._crowd.forget(self)
        return self._crowd.remember(self, holder_of(address), makes_room=False)

    def vouch(self, caller: str) -> None:
        """A key of this caller was recognised on it."""
        if self.is_stranger or self.holder != caller:
            self._crowd.recognise(self, caller)

    def leave(self) -> None:
        """It is closed."""
        self._crowd.leave(self)


def vouch(scope: Scope, caller: str) -> None:
    """The request's key was recognised, so its connection is no stranger's but this caller's."""
    place: Place | None = scope.get("state", {}).get(STATE)
    if place is not None:
        place.vouch(caller)


def peer_of(scope: Scope) -> str:
    """Who holds the request's connection; empty: nobody with an address."""
    peer: str | None = scope.get("state", {}).get(PEER)
    return (scope.get("client") or ("",))[0] if peer is None else peer


class Crowd:
    """All places of one port."""

    def __init__(self, *, most: int = 10_000, most_of_an_address: int = 1_024) -> None:
        """`most_of_an_address`: strangers, not callers with a key."""
        self.most = most
        self.gave_way = 0
        """Connections closed for others."""
        self.turned_away = 0
        """Connections closed as they came."""
        self._most_of_an_address = most_of_an_address
        self._places: set[Place] = set()
        self._strangers: dict[Place, None] = {}
        """From the oldest on; those of each holder likewise:"""
        self._by_holder: dict[str, dict[Place, None]] = {}
        self._by_caller: dict[str, dict[Place, None]] = {}

    @property
    def count(self) -> int:
        """Places taken."""
        return len(self._places)

    def admits(self, address: str) -> bool:
        """A stranger of this address may connect."""
        own = self._by_holder.get(holder_of(address), ())
        return len(own) < self._most_of_an_address and self.count < self.most + RESERVED

    def enter(self, connection: HttpConnection, address: str | None) -> Place | None:
        """A place for who has connected; None: there is none. `address`: None for a proxy, which has no limit."""
        place = Place(self, connection)
        if self.count >= self.most and not (self._make_room(self._strangers) or self._take_from_callers()):
            if self.count >= self.most + RESERVED:
                self.turned_away += 1
                return None
            place.is_spare = True
        self._places.add(place)
        self.remember(place, "" if address is None else holder_of(address), makes_room=True)
        return place

    def remember(self, place: Place, holder: str, *, makes_room: bool) -> bool:
        """Take it for a stranger's; False where the holder has too many, and none of them is to make room."""
        if holder:
            own = self._by_holder.setdefault(holder, {})
            if len(own) >= self._most_of_an_address and not (makes_room and self._make_room(own)):
                return False
            self._by_holder.setdefault(holder, {})[place] = None
        place.holder, place.is_stranger = holder, True
        self._strangers[place] = None
        return True

    def recognise(self, place: Place, caller: str) -> None:
        """Take it for this caller's, unless it has been left."""
        if place not in self._places:
            return
        self.forget(place)
        place.holder = caller
        self._by_caller.setdefault(caller, {})[place] = None

    def forget(self, place: Place) -> None:
        """Take it for nobody's."""
        by = self._by_caller
        if place.is_stranger:
            by = self._by_holder
            del self._strangers[place]
        own = by.get(place.holder)
        if own is not None:
            own.pop(place, None)
            if not own:
                del by[place.holder]
        place.holder, place.is_stranger = "", False

    def leave(self, place: Place) -> None:
        """It is free; nothing where it was so before."""
        self.forget(place)
        self._places.discard(place)

    def _make_room(self, strangers: Iterable[Place]) -> bool:
        """The oldest of them that is not being answered goes, or the oldest; False where there is none."""
        oldest = list(islice(strangers, _LOOKED_AT))
        if not oldest:
            return False
        self._give_up(next((each for each in oldest if not each.connection.is_answering()), oldest[0]))
        return True

    def _take_from_callers(self) -> bool:
        """A connection of who has most goes, if nothing is being answered on it; False where none was found."""
        own = max(self._by_caller.values(), key=len, default={})
        for place in list(islice(own, _LOOKED_AT)):
            if not place.connection.is_answering():
                self._give_up(place)
                return True
            own[place] = own.pop(place)  # so that others are looked at next time
        return False

    def _give_up(self, place: Place) -> None:
        self.leave(place)
        self.gave_way += 1
        place.connection.give_way()


class Sender(Protocol):
    """Whose head is coming."""

    def give_way(self) -> None:
        """Others need its room: close."""


class Heads:
    """All of one port."""

    def __init__(self, *, most_bytes: int = 32 * 2**20) -> None:
        """`most_bytes`: as they came; what is made of them takes half as much again."""
        self._most_bytes = most_bytes
        self._held: dict[Sender, int] = {}
        """From the one that began first on."""
        self.bytes = 0

    def hold(self, sender: Sender, count: int) -> None:
        """So much of its head has come. Senders go, itself if need be, until all is within bounds."""
        self.bytes += count - self._held.get(sender, 0)
        self._held[sender] = count
        while self.bytes > self._most_bytes:
            first = next(iter(self._held))
            self.release(first)
            first.give_way()

    def release(self, sender: Sender) -> None:
        """Its head is whole, or it is gone; nothing where none was held."""
        self.bytes -= self._held.pop(sender, 0)

"""Who may hold how many connections, and who goes when there are too many."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.http.connections import RESERVED, ConnectionLimiter, Place, forwarded_for
from fairlane.scheduler.protocol.settings import Networks
from tests.support.gateway.served import CHAT, WAIT_S, Served, error_of, gateway, settings, until

pytestmark = pytest.mark.anyio

MOST, OF_AN_ADDRESS = 12, 5
ATTACKER, PROXY, CALLER = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@dataclass(eq=False)
class HandConnection:
    answers: bool = False
    gone: list["HandConnection"] = field(default_factory=list)

    def is_answering(self) -> bool:
        return self.answers

    def give_way(self) -> None:
        self.gone.append(self)


def entered(
    limiter: ConnectionLimiter, gone: list[HandConnection], address: str | None, *, answers: bool = False
) -> Place:
    place = limiter.enter(HandConnection(answers, gone), address)
    assert place is not None
    return place


async def test_an_address_gives_way_to_itself_and_the_oldest_first() -> None:
    limiter, gone = ConnectionLimiter(most=10, most_of_an_address=2), list[HandConnection]()
    other = entered(limiter, gone, "10.0.0.2")
    own = [entered(limiter, gone, "10.0.0.1") for _ in range(4)]

    assert gone == [own[0].connection, own[1].connection]
    assert other.is_stranger


async def test_strangers_go_before_callers_and_who_is_being_answered_goes_last() -> None:
    limiter, gone = ConnectionLimiter(most=3, most_of_an_address=9), list[HandConnection]()
    busy = entered(limiter, gone, "10.0.0.1", answers=True)
    known = entered(limiter, gone, "10.0.0.2", answers=True)
    known.vouch("acme")
    idle = entered(limiter, gone, "10.0.0.3")

    entered(limiter, gone, "10.0.0.4", answers=True).vouch("acme")
    assert gone == [idle.connection]
    entered(limiter, gone, "10.0.0.5", answers=True).vouch("acme")
    assert gone == [idle.connection, busy.connection]
    late = entered(limiter, gone, "10.0.0.6")
    assert late.is_too_much
    known.leave()
    assert not late.is_too_much


async def test_where_callers_have_all_places_who_has_most_gives_idle_ones() -> None:
    limiter, gone = ConnectionLimiter(most=6, most_of_an_address=9), list[HandConnection]()
    acme = [entered(limiter, gone, "10.0.0.1", answers=number < 2) for number in range(4)]
    for place in acme:
        place.vouch("acme")
    for _ in range(2):
        entered(limiter, gone, "10.0.0.2").vouch("globex")

    for caller in ("initech", "hooli"):
        late = entered(limiter, gone, "10.0.0.3")
        assert not late.is_too_much
        late.vouch(caller)
    assert gone == [place.connection for place in acme[2:]]


async def test_idle_ones_are_found_behind_many_that_are_being_answered() -> None:
    limiter, gone = ConnectionLimiter(most=20, most_of_an_address=9), list[HandConnection]()
    places = [entered(limiter, gone, None, answers=number < 18) for number in range(20)]
    for place in places:
        place.vouch("acme")

    late = entered(limiter, gone, "10.0.0.2")
    assert late.is_too_much
    late.leave()
    assert not entered(limiter, gone, "10.0.0.2").is_too_much
    assert gone == [places[18].connection]


async def test_beyond_the_reserve_nobody_gets_a_place() -> None:
    limiter, gone = ConnectionLimiter(most=1, most_of_an_address=9), list[HandConnection]()
    for _ in range(1 + RESERVED):
        entered(limiter, gone, "10.0.0.1", answers=True).vouch("acme")

    assert limiter.enter(HandConnection(), "10.0.0.2") is None
    assert limiter.turned_away == 1


@given(
    st.lists(st.tuples(st.sampled_from("ckvlp"), st.integers(0, 9), st.sampled_from(["10.0.0.1", "10.0.0.2", None])))
)
def test_no_place_is_lost_or_taken_twice(steps: list[tuple[str, int, str | None]]) -> None:
    limiter, gone, here = ConnectionLimiter(most=4, most_of_an_address=2), list[HandConnection](), list[Place]()
    for step, which, address in steps:
        if step == "c":
            place = limiter.enter(HandConnection(which % 2 == 0, gone), address)
            here += [place] if place else []
        elif here:
            place = here[which % len(here)]
            if step == "l":
                place.leave()
                here.remove(place)
            elif step == "v":
                place.vouch(f"caller-{which % 3}")
            elif step == "p" and address is not None:
                place.carries(address)
        here = [place for place in here if place.connection not in gone]
        assert limiter.count == len(here) <= 4 + RESERVED
        for one in ("10.0.0.1", "10.0.0.2"):
            assert sum(place.is_stranger and place.holder == one for place in here) <= 2
    for place in here:
        place.leave()
    assert (limiter.count, limiter._strangers, limiter._by_holder, limiter._by_caller) == (0, {}, {}, {})


PROXIES = Networks(["10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("hops", "address"),
    [
        (["192.0.2.1"], "192.0.2.1"),
        (["192.0.2.9, 192.0.2.1"], "192.0.2.1"),
        (["192.0.2.9, 192.0.2.1 , 10.1.1.1"], "192.0.2.1"),
        (["192.0.2.9", "192.0.2.1,10.1.1.1"], "192.0.2.1"),
        (["192.0.2.1:4711"], "192.0.2.1"),
        (["[2001:db8::1]:4711, fd00::1"], "2001:db8::1"),
        (["2001:db8::1"], "2001:db8::1"),
        (["10.1.1.1, 10.2.2.2"], None),
        (["192.0.2.1, unknown, 10.1.1.1"], None),
        (["192.0.2.1" + ", 10.1.1.1" * 5_000], None),
        ([""], None),
        ([], None),
    ],
)
async def test_the_rightmost_address_that_is_no_trusted_proxy_s_counts(hops: list[str], address: str | None) -> None:
    headers = [(b"x-forwarded-for", hop.encode()) for hop in hops]

    assert forwarded_for([(b"host", b"x"), *headers], PROXIES) == address


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    section = {"max_connections": MOST, "max_connections_of_an_address": OF_AN_ADDRESS, "first_byte_timeout_s": 60.0}
    async with gateway(settings(valkey_url, section=section, trusted_proxies=Networks([PROXY]))) as served:
        await served.tenant()
        yield served


async def connected(served: Served, address: str) -> asyncio.StreamWriter:
    """A connection that says nothing."""
    host, port = served.server.servers[0].sockets[0].getsockname()[:2]
    _, writer = await asyncio.open_connection(host, port, local_addr=(address, 0))
    return writer


def client(served: Served, address: str, **headers: str) -> httpx.AsyncClient:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    transport = httpx.AsyncHTTPTransport(local_address=address)
    return httpx.AsyncClient(base_url=served.url, timeout=WAIT_S, transport=transport, headers=given)


def bearer(served: Served) -> str:
    return f"Bearer {served.keys['acme']}"


@pytest.mark.parametrize("attacker", [ATTACKER, PROXY], ids=["one address", "through a trusted proxy"])
async def test_silent_connections_shut_nobody_out(served: Served, attacker: str) -> None:
    limiter = served.resources.ports.limiter
    async with client(served, CALLER, authorization=bearer(served)) as before:
        assert (await before.get("/v1/models")).status_code == 200
        silent = [await connected(served, attacker) for _ in range(5 * MOST)]
        await until(lambda: limiter.count == (MOST if attacker == PROXY else 1 + OF_AN_ADDRESS))

        forwarded = {"x_forwarded_for": CALLER} if attacker == PROXY else {}
        async with client(served, attacker if forwarded else CALLER, **forwarded) as probe:
            assert (await probe.get("/healthz")).status_code == 200
            key = {"authorization": bearer(served)}
            assert (await probe.get("/v1/models", headers=key)).status_code == 200
        assert (await before.get("/v1/models")).status_code == 200
        assert limiter.count <= MOST
    for writer in silent:
        writer.close()


async def test_callers_with_a_key_are_not_crowded_out_and_probes_are_answered_in_any_crowd(served: Served) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: {bearer(served)}\r\ncontent-length: 9\r\n\r\n"
    limiter, held = served.resources.ports.limiter, []
    for number in range(MOST):
        held.append(await connected(served, CALLER))
        held[-1].write(head.encode())
        await until(lambda: len(limiter._by_caller.get("acme", ())) > number)  # noqa: B023 - it is waited for here

    async with client(served, ATTACKER) as late:
        assert (await late.get("/healthz")).status_code == 200
        assert error_of(await late.get("/v1/models")) == (429, "overloaded")
    for writer in held:
        writer.close()


async def test_idle_connections_of_one_caller_shut_no_other_out(served: Served) -> None:
    other = await served.tenant("globex")
    async with client(served, CALLER, authorization=bearer(served)) as caller:
        held = [caller.build_request("GET", "/v1/models") for _ in range(MOST)]
        answers = [await caller.send(request, stream=True) for request in held]  # each on a connection of its own
        assert served.resources.ports.limiter.count == MOST

        async with client(served, CALLER, authorization=f"Bearer {other}") as late:
            assert (await late.get("/v1/models")).status_code == 200
        for answer in answers:
            await answer.aclose()


async def test_through_a_trusted_proxy_each_address_has_its_own_bound(served: Served) -> None:
    section = served.resources.settings.gateway
    async with client(served, PROXY) as proxy:
        asked = [
            await proxy.send(
                proxy.build_request("GET", "/v1/limits", headers={"x-forwarded-for": ATTACKER}), stream=True
            )
            for _ in range(section.max_connections_of_an_address + 1)
        ]
        assert [answer.status_code for answer in asked] == [401] * section.max_connections_of_an_address + [429]
        other = await proxy.get("/v1/limits", headers={"x-forwarded-for": CALLER, "authorization": bearer(served)})
        assert other.status_code == 200
        for answer in asked:
            await answer.aclose()


@pytest.mark.parametrize(("peer", "status"), [(PROXY, 200), (CALLER, 403)])
async def test_only_a_trusted_proxy_says_where_a_request_comes_from(served: Served, peer: str, status: int) -> None:
    key = await served.tenant("far", scopes={"cidrs": ["192.0.2.0/24"]})
    async with client(served, peer, x_forwarded_for="192.0.2.7", authorization=f"Bearer {key}") as far:
        assert (await far.get("/v1/models")).status_code == status

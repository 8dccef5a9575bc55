"""The attacks of `tests/system/attacks/` in short: what is answered, and that others are served and memory is bounded.

The whole form, with what they do to others' times, is `make attack`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.system.harness import MODEL, Server
from tests.system.attacks import cookies, crowds, numbers, paths, permissions, pipelining, scopes, shapes, tokens
from tests.system.attacks.bodies import Target, attack
from tests.system.attacks.loops import LOOPS
from tests.system.attacks.measured import MOST_BYTES, Measured, Probed, forget_peak, peak_bytes
from tests.system.attacks.permissions import umask_of_nobody
from tests.system.attacks.rows import Row
from tests.system.attacks.target import settings

pytestmark = pytest.mark.system
HELD = 60
"""Connections with an unfinished body of 8 MB each: 480 MB, were they all taken."""
PLACES, OF_AN_ADDRESS, CROWD = 300, 100, 400
"""Connections that the server has room for, those of one address among them, and those that come."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Server]:
    """One for all attacks: what is refused leaves no trace."""
    places = {"GATEWAY__MAX_CONNECTIONS": PLACES, "GATEWAY__MAX_CONNECTIONS_OF_AN_ADDRESS": OF_AN_ADDRESS}
    given = {name: str(value) for name, value in places.items()} | {"WORKER__MODELS_DIR": str(models_dir)}
    with umask_of_nobody():
        server = Server(tmp_path_factory.mktemp("attacked"), settings() | given).start()
    yield server
    assert server.stop() == 0, server.log()[-2000:]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(shapes.rows, id=shapes.KIND),
        pytest.param(pipelining.rows, id=pipelining.KIND),
        pytest.param(paths.rows, id=paths.KIND),
        pytest.param(scopes.rows, id=scopes.KIND),
        pytest.param(cookies.rows, id=cookies.KIND),
        pytest.param(permissions.rows, id=permissions.KIND),
        pytest.param(tokens.rows, id=tokens.KIND),
        pytest.param(numbers.rows, id=numbers.KIND),
        pytest.param(partial(crowds.rows, count=CROWD), id=crowds.KIND),
    ],
)
def test_every_attack_is_answered_as_expected(attacked: Server, rows: Callable[[Server], Iterable[Row]]) -> None:
    assert [row for row in rows(attacked) if not row.is_well] == []


LOOP_ANSWERS = {
    "small-chunks": {"401", "429", "reset"},
    "small-chunks-with-a-key": {"400", "408", "413", "429", "held", "reset"},
    "lists-as-stream": {"400", "413", "429", "reset"},
    "lists-as-schema": {"400", "429", "reset"},
    "lists-as-custom-id": {"200", "429", "reset"},
}
"""What may be answered to each attack on the event loop, within half a second. A body that is refused before all of it
was sent may end in a reset: the gateway closes its connection."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOOP_ANSWERS)
def test_an_attack_by_number_is_refused_and_others_are_served(attacked: Server, name: str) -> None:
    attacker, person = Target(attacked.url, attacked.tenant(f"attacker-{name}")), attacked.tenant(f"person-{name}")
    gateway = attacked.child("gateway")
    forget_peak(gateway)

    async def both() -> None:
        async with attacked.async_sdk(person, max_retries=0, timeout=60) as client:
            answering = client.completions.create(model=MODEL, prompt="Hello", max_tokens=1)
            found, _ = await asyncio.gather(LOOPS[name].attack(attacker, 0.5), answering)
        answers.update(found)

    answers: Counter[str] = Counter()
    asyncio.run(both())

    assert answers
    assert answers.keys() <= LOOP_ANSWERS[name]
    assert peak_bytes(gateway) <= MOST_BYTES


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["unfinished", "unfinished-chunks", "texts", "ones", "digits", "keys", "nested"])
def test_an_attack_by_bodies_costs_others_nothing_but_time(attacked: Server, name: str) -> None:
    attacker, person = Target(attacked.url, attacked.tenant(f"attacker-{name}")), attacked.tenant(f"person-{name}")
    gateway = attacked.child("gateway")
    forget_peak(gateway)

    async def asks() -> None:
        async with attacked.async_sdk(person, max_retries=0, timeout=60) as client:
            for _ in range(3):
                await client.completions.create(model=MODEL, prompt="Hello", max_tokens=1)

    async def both() -> Counter[str]:
        answers, _ = await asyncio.gather(attack(attacker, name, 1.0, connections=4, held=HELD), asks())
        return answers

    answers = asyncio.run(both())

    assert answers.keys() & {"400", "413", "429", "held"}
    assert answers.keys() <= {"400", "413", "429", "held", "reset"}
    # reset: the client sent its next request on a connection whose last body was refused before its end
    assert peak_bytes(gateway) <= MOST_BYTES
    if name == "unfinished":
        assert answers["held"] <= 4


def _probed(p99_ms: float, slowest_probe_ms: float) -> Probed:
    return Probed(20.0, p99_ms, {"200": 100}, slowest_probe_ms, {"200": 10})


@pytest.mark.parametrize(
    ("during", "control", "faults"),
    [
        (_probed(180, 90), _probed(120, 45), []),
        (_probed(183, 90), _probed(120, 45), ["P99 over 182 ms"]),
        (_probed(180, 96), _probed(120, 45), ["a late probe"]),
        (_probed(91, 50), _probed(10, 1), []),
    ],
    ids=["within", "late", "a late probe", "a control faster than the quiet times"],
)
def test_a_flood_of_the_event_loop_is_judged_by_its_control(during: Probed, control: Probed, faults: list[str]) -> None:
    row = Measured("lists-as-stream", {}, _probed(30, 2), during, control, 0, 0, 0)

    assert row.faults == faults
    assert f"control: P99 {control.p99_ms:.0f} ms" in row.row.seen

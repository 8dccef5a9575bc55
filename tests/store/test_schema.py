"""The schema of a store: written by the first process, raised by a newer one, refused where it cannot be read."""

import pytest
import redis.asyncio

from fairlane.store import checks, schema
from fairlane.store.checks import GATEWAY_COMMANDS, FaultKind
from fairlane.store.migrations import STEPS, Step

pytestmark = pytest.mark.anyio


def release(patch: pytest.MonkeyPatch, number: int) -> None:
    """Be a release with this schema, which understands the one before."""
    patch.setattr(schema, "SCHEMA", number)
    patch.setattr(schema, "OLDEST_SCHEMA", number - 1)


@pytest.mark.parametrize(
    ("stored", "refusal"),
    [
        (None, ""),
        (b"2 1", ""),
        (b"3 2", ""),
        (b"4 3", ""),
        (b"1 1", "its schema 1 is too old: this release needs 2 or later"),
        (b"5 4", "its schema 5 is too new: it needs processes of schema 4 or later, and this one has 3"),
        (b"\xff", "its schema is b'\\xff', which this release does not know"),
    ],
)
def test_one_release_back_or_ahead_is_understood(
    monkeypatch: pytest.MonkeyPatch, stored: bytes | None, refusal: str
) -> None:
    release(monkeypatch, 3)

    assert schema.refusal(stored) == refusal


async def test_the_first_process_writes_it_and_a_newer_one_raises_it(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = []
    for number, refused in ((2, False), (3, False), (2, False), (3, False), (4, False), (2, True), (6, True)):
        release(monkeypatch, number)
        assert bool(await schema.join(store)) == refused
        assert bool(await schema.read(store)) == refused
        stored.append(await store.get(schema.KEY))

    assert stored == [b"2 1", b"3 2", b"3 2", b"3 2", b"4 3", b"4 3", b"4 3"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps to the schemas 2 and 3; each is noted when it runs."""
    ran: list[int] = []

    def step(number: int) -> Step:
        async def noted(_: str) -> None:
            ran.append(number)

        return noted

    for number in (2, 3):
        monkeypatch.setitem(STEPS, number, step(number))
    return ran


@pytest.mark.parametrize(("stored", "due"), [(None, [3]), (b"2 2", [3]), (b"3 2", [3]), (b"3 3", [])])
async def test_data_is_migrated_once(
    store: redis.asyncio.Redis,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[int],
    stored: bytes | None,
    due: list[int],
) -> None:
    release(monkeypatch, 3)
    if stored is not None:
        await store.set(schema.KEY, stored)

    assert await schema.steps_due(store) == due
    await schema.migrate(store, store_url)
    await schema.migrate(store, store_url)

    assert (steps, await store.get(schema.KEY)) == (due, b"3 3" if due else stored)


async def test_a_release_after_the_next_does_not_start_on_data_that_was_not_migrated(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    release(monkeypatch, 3)
    await store.set(schema.KEY, "2 1")

    for _ in range(2):
        refused = await schema.join(store)
        assert refused == "its data is not migrated: run `fairlane migrate --apply` of a release with schema 2"


async def test_data_is_not_migrated_backwards(
    store: redis.asyncio.Redis, store_url: str, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    release(monkeypatch, 2)
    await store.set(schema.KEY, "3 2")

    assert schema.refusal(b"3 2") == ""
    with pytest.raises(ValueError, match="data is not migrated backwards: use a release with schema 3, or restore"):
        await schema.migrate(store, store_url)

    assert (steps, await store.get(schema.KEY)) == ([], b"3 2")


async def test_processes_of_the_release_before_do_not_work_on_migrated_data(
    store: redis.asyncio.Redis, store_url: str, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    release(monkeypatch, 3)
    await schema.migrate(store, store_url)
    release(monkeypatch, 2)

    assert "its schema 3 is too new" in await schema.join(store)


async def test_a_store_of_another_time_is_a_fault_that_prevents_a_start(
    store_url: str, store: redis.asyncio.Redis
) -> None:
    await store.set(schema.KEY, f"{schema.SCHEMA + 2} {schema.SCHEMA + 1}")

    (fault,) = await checks.faults(store_url, GATEWAY_COMMANDS, timeout_s=10.0)

    assert (fault.kind, fault.is_serious, fault.kind in checks.REFUSED) == (FaultKind.SCHEMA, True, True)
    assert f"its schema {schema.SCHEMA + 2} is too new" in str(fault)

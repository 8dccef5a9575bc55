"""Who runs a batch: one gateway at a time, and another when that one goes."""

import asyncio
import itertools
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.gateway.batches.batch import Progress
from fairlane.gateway.batches.batch_records import BatchRecords
from tests.support.gateway.batch_files import (
    a_batch,
    answered,
    begun,
    charged_as_told,
    ended,
    folder_settings,
    lines,
    results,
)
from tests.support.gateway.served import gateway, serving, until
from tests.support.store.watched import WatchedRedis

pytestmark = pytest.mark.anyio

LEASE_MS = 60_000


@pytest.fixture
def records(store: redis.asyncio.Redis) -> BatchRecords:
    return BatchRecords(store, most_open=3)


async def test_a_batch_has_one_owner_until_its_lease_ends(records: BatchRecords) -> None:
    await records.create("acme", made := a_batch(), 10, tenant_limit=None, key_limit=None)

    first = await records.take("acme", "one", LEASE_MS)
    assert first is not None
    assert (first.batch, first.epoch, first.progress) == (made, 1, None)
    assert await records.take("acme", "two", LEASE_MS) is None
    assert await records.renew(first, LEASE_MS) == (True, False)

    assert await records.renew(first, 0) == (True, False)
    second = await records.take("acme", "two", LEASE_MS)
    assert second is not None
    assert second.epoch == 2
    assert await records.renew(first, LEASE_MS) == (False, False)
    assert not await records.save(first, made, Progress.of(1), 5)
    assert not await records.finish(first, made, [])
    assert await records.roots() == ["acme"]
    assert await records.save(second, made, Progress.of(1), 5)


async def test_what_was_saved_is_what_the_next_owner_finds(records: BatchRecords) -> None:
    await records.create("acme", a_batch(), 10, tenant_limit=None, key_limit=None)
    first = await records.take("acme", "one", 1)
    assert first is not None
    progress = Progress.of(9)
    progress.mark(8)
    progress.segments["1-ab"] = 2
    await records.save(first, first.batch, progress, 3)
    await asyncio.sleep(0.01)

    second = await records.take("acme", "two", LEASE_MS)

    assert second is not None
    assert second.progress == progress
    assert await records.enqueued("acme", "tenant:acme") == {first.batch.id: 3}
    assert await records.enqueued("acme", "key:k") == {first.batch.id: 3}


async def test_a_tenant_has_so_many_open_batches(records: BatchRecords) -> None:
    asked = [a_batch() for _ in range(4)]
    full = [await records.create("acme", each, 1, tenant_limit=None, key_limit=None) for each in asked]
    assert full[:3] == [None] * 3
    assert full[3] is not None
    assert (full[3].limit, full[3].used) == ("open", 3)
    again = await records.create("acme", asked[0], 1, tenant_limit=None, key_limit=None)
    assert again is None  # which was sent twice


async def test_open_batches_of_a_root_are_read_in_pages(store: redis.asyncio.Redis) -> None:
    """Each is listed once, also if the store shows it twice because some were taken in between."""
    records, at_once, calls = BatchRecords(store, most_open=1_000), 64, list[int]()
    made = [a_batch() for _ in range(10 * at_once)]
    for each in made:
        await records.create("acme", each, 1, tenant_limit=None, key_limit=None)

    async def take_one() -> None:
        calls.append((await store.info("commandstats"))["cmdstat_hmget"]["calls"])
        await records.take("acme", "one", LEASE_MS)

    async with WatchedRedis(store, take_one) as watched:
        standing = await BatchRecords(watched, most_open=1_000).open_batches()

    assert sorted(each.batch.id for each in standing) == sorted(each.id for each in made)
    assert len(calls) > 5
    assert max(later - sooner for sooner, later in itertools.pairwise(calls)) < 2 * at_once


async def test_a_root_without_open_batches_is_looked_at_no_more(records: BatchRecords) -> None:
    await records.create("acme", a_batch(), 1, tenant_limit=None, key_limit=None)
    taken = await records.take("acme", "one", LEASE_MS)
    assert taken is not None
    assert await records.take("acme", "one", LEASE_MS) is None
    assert await records.roots() == ["acme"]
    assert await records.finish(taken, taken.batch, [])
    assert await records.finish(taken, taken.batch, [])  # its answer was lost
    assert await records.take("acme", "one", LEASE_MS) is None
    assert await records.roots() == []


async def test_a_gateway_that_stops_hands_its_batch_on(valkey_url: str, tmp_path: Path) -> None:
    bounds = folder_settings(valkey_url, tmp_path, files={"batch_lease_s": 600.0, "batch_lines": 4}, grace_s=0.1)
    async with serving(bounds) as first:
        await first.tenant()
        first.worker.step_s = 0.01
        async with first.sdk() as client:
            batch = await begun(client, lines(24, max_tokens=16, ignore_eos=True))
            await answered(client, batch, 4)
        async with gateway(bounds) as second:
            second.keys = first.keys
            await first.stop()
            first.worker.step_s = 0.0
            async with second.sdk() as client:
                batch = await ended(client, batch)
                found = await results(client, batch.output_file_id)
            await until(lambda: not second.resources.fleet.dispatcher.jobs)
            usage = [entry for entry in await second.ledger() if entry[2]]

    assert (batch.status, len(found)) == ("completed", 24)
    assert sum(output for _, _, output in usage) == 24 * 16


async def test_a_batch_whose_file_is_elsewhere_is_left_to_who_has_it(valkey_url: str, tmp_path: Path) -> None:
    here, there = (
        folder_settings(valkey_url, tmp_path / name, files={"batches": most}) for name, most in (("a", 0), ("b", 16))
    )
    async with serving(here) as first, gateway(there) as second:
        await first.tenant()
        second.keys = first.keys
        async with first.sdk() as client:
            batch = await begun(client, lines(2))
            await until(lambda: len(second.resources.batches.runner._elsewhere) == 1)
            assert (await second.get(f"/v1/files/{batch.input_file_id}/content")).status_code == 503
            async with gateway(folder_settings(valkey_url, tmp_path / "a")) as third:
                batch = await ended(client, batch)
                assert not third.resources.batches.runner._elsewhere
    assert batch.status == "completed"


async def test_files_may_stand_in_a_bucket(valkey_url: str, tmp_path: Path) -> None:
    async with serving(folder_settings(valkey_url, tmp_path, files={"url": "memory:///"})) as served:
        await served.tenant()
        async with served.sdk() as client:
            batch = await ended(client, await begun(client, lines(10)))
            found = await results(client, batch.output_file_id)
            await client.files.delete(batch.input_file_id)
            await charged_as_told(served, batch, found)
    assert len(found) == 10
    assert await asyncio.to_thread(lambda: [path for path in tmp_path.rglob("*") if path.is_file()]) == []

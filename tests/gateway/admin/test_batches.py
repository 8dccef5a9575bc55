"""Open batches through the admin API."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from fairlane.gateway.batches.batch import Batch, Progress
from fairlane.gateway.batches.batch_records import BatchRecords
from tests.support.gateway.admin_app import AdminBench
from tests.support.gateway.batch_files import a_batch

pytestmark = pytest.mark.anyio

LEASE_MS = 60_000


@pytest.fixture
def records(bench: AdminBench) -> BatchRecords:
    return BatchRecords(bench.redis, most_open=10)


async def opened(records: BatchRecords, tenant: str = "acme", **fields: Any) -> Batch:
    """A batch of ten tokens that nobody runs yet."""
    made = a_batch(tenant, **fields)
    assert await records.create(tenant, made, 10, tenant_limit=None, key_limit=None) is None
    return made


async def test_operators_see_how_far_each_batch_is_and_who_runs_it(bench: AdminBench, records: BatchRecords) -> None:
    made = await opened(records, total=8)
    (before,) = (await bench.done("GET", "/batches"))["data"]
    taken = await records.take("acme", "host-1", LEASE_MS)
    assert taken is not None
    begun = replace(made, status="in_progress", completed=3, failed=1)
    await records.save(taken, begun, Progress.of(8), 4)
    (during,) = (await bench.done("GET", "/batches"))["data"]

    assert before == {
        "id": made.id,
        "tenant": "acme",
        "key": "k",
        "endpoint": "/v1/completions",
        "status": "validating",
        "created_at": made.created_at,
        "window_ends_at": made.expires_at,
        "total": 8,
        "completed": 0,
        "failed": 0,
        "enqueued_tokens": 10,
        "gateway": None,
    }
    changed = {"status": "in_progress", "completed": 3, "failed": 1, "enqueued_tokens": 4, "gateway": "host-1"}
    assert during == {**before, **changed}


async def test_one_that_is_to_end_says_so_and_one_that_has_ended_is_gone(
    bench: AdminBench, records: BatchRecords
) -> None:
    made = await opened(records)
    await records.cancel("acme", made.id)
    (shown,) = (await bench.done("GET", "/batches"))["data"]
    taken = await records.take("acme", "host-1", LEASE_MS)
    assert taken is not None
    await records.finish(taken, replace(made, status="cancelled"), [])

    assert shown["status"] == "cancelling"
    assert (await bench.done("GET", "/batches"))["data"] == []


async def test_nobody_runs_a_batch_whose_lease_has_run_out(bench: AdminBench, records: BatchRecords) -> None:
    await opened(records)
    assert await records.take("acme", "host-1", lease_ms=0) is not None

    (shown,) = (await bench.done("GET", "/batches"))["data"]

    assert shown["gateway"] is None


async def test_all_tenants_batches_come_in_pages_by_the_end_of_their_windows(
    bench: AdminBench, records: BatchRecords
) -> None:
    now_s = int(time.time())
    ends = {hours: now_s + hours * 3_600 for hours in (48, 1, 24)}
    made = {hours: await opened(records, f"tenant-{hours}", expires_at=end) for hours, end in ends.items()}

    first = await bench.done("GET", "/batches?limit=2")
    taken = await records.take("tenant-24", "host-1", LEASE_MS)
    assert taken is not None
    await records.finish(taken, made[24], [])  # the page's last ends before the next is asked for
    rest = await bench.done("GET", f"/batches?limit=2&after={first['last_id']}")

    told = [each["id"] for each in [*first["data"], *rest["data"]]]
    assert told == [made[hours].id for hours in (1, 24, 48)]
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_one_tenants_alone(bench: AdminBench, records: BatchRecords) -> None:
    own = await opened(records)
    await opened(records, "globex")

    assert [each["id"] for each in (await bench.done("GET", "/batches?tenant=acme"))["data"]] == [own.id]
    assert (await bench.done("GET", "/batches?tenant=nobody"))["data"] == []


@pytest.mark.parametrize("query", ["after=batch_0", "limit=0", "state=open"])
async def test_what_is_asked_is_checked(bench: AdminBench, query: str) -> None:
    status, _, param = await bench.refused("GET", f"/batches?{query}")

    assert (status, param) == (400, query.partition("=")[0])

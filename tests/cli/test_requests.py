"""`fairlane requests` against a running admin API."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.insight.request_records.record import RecordedEvent, RecordedPreemption, RequestRecord
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore
from tests.support.gateway.admin_app import HandFleet
from tests.support.gateway.commands_bench import Command, gateway


@pytest.fixture(scope="module")
def running(emptied_valkey: EmbeddedStore) -> Iterator[tuple[str, HandFleet]]:
    with gateway(emptied_valkey.url) as served:
        yield served


@pytest.fixture
def command(
    running: tuple[str, HandFleet], valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.chdir(tmp_path)
    asyncio.run(_write(valkey_url, _record("fast", 1, 20.0), _record("slow/1", 2, 900.0)))
    return Command(*running)


async def _write(url: str, *records: RequestRecord) -> None:
    async with Redis.from_url(url) as redis:
        await RecordStore(redis, "gw", most=10).write([EndedRecord(each, is_special=True) for each in records], ())


def _record(request_id: str, number: int, ttft_ms: float) -> RequestRecord:
    yielded = RecordedPreemption(
        at_ms=5.0,
        mode="swap",
        blocks=3,
        bytes=12_288,
        predicted_ms=4.0,
        stall_ms=80.0,
        resource="blocks",
        lane="latency",
        tenant="globex",
    )
    return RequestRecord(
        id=f"{number:024x}",
        request_id=request_id,
        tenant="acme",
        key="k",
        arrived_s=1_700_000_000.0 + number,
        lane="throughput",
        state="ended",
        outcome="finished",
        ttft_ms=ttft_ms,
        queue_ms=ttft_ms / 2,
        total_ms=1_500.0,
        preempted=1,
        preemptions=[yielded],
        events=[RecordedEvent(1.0, "queued", 4), RecordedEvent(1_500.0, "ended")],
    )


def test_they_are_listed_the_latest_or_the_slowest_first(command: Command) -> None:
    latest = command.json("requests", "ls", "-o", "json")
    slowest = command.json("requests", "ls", "--slowest", "ttft", "-n", "1", "--json")
    table = command.ok("requests", "ls", "--tenant", "acme", "--lane", "throughput")

    assert [each["request_id"] for each in latest] == ["slow/1", "fast"]
    assert [each["request_id"] for each in slowest] == ["slow/1"]
    assert "900 ms" in table
    assert "fast" in table
    assert command.json("requests", "ls", "--state", "running", "--json") == []


def test_one_is_shown_with_its_preemptions_and_events(command: Command) -> None:
    table = command.ok("requests", "show", "slow/1")
    document = command.json("requests", "show", f"{2:024x}", "--json")

    assert "latency of globex" in table
    assert "80 ms" in table
    assert "queued" in table
    assert re.search(r"copies foreseen +away\s", table), "what copies cost is no guess at how long it stays away"
    assert document["preemptions"][0]["cause"]["tenant"] == "globex"
    assert re.search(r"arrived_at +2023-11-14 22:13:22Z\s", table)
    assert document["arrived_at"] == 1_700_000_002.0, "programs read seconds"


def test_why_is_a_sentence(command: Command) -> None:
    told = command.ok("requests", "why", "slow/1")

    assert "preempted once by the latency lane of tenant globex" in told
    assert len(told.splitlines()) == 1


def test_one_that_is_not_there_is_one_line(command: Command) -> None:
    assert "not_found" in command.fails("requests", "why", "nobody")

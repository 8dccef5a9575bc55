"""The metrics of several processes behind one port: one exposition, whichever of them is asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlane.gateway.http.ports import Member
from fairlane.gateway.insight.telemetry import process_metrics as processes
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.insight.telemetry.process_metrics import ProcessMetrics

pytestmark = pytest.mark.anyio
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def process(fleet_cache: Path, index: int, count: int = 2) -> tuple[ProcessMetrics, Telemetry]:
    """One of the processes, with `index + 1` requests counted."""
    telemetry = Telemetry()
    telemetry.requests.add("/v1/models", 'odd "{lane}\n# HELP', "ok", by=index + 1)
    telemetry.store_up.set(1)
    return ProcessMetrics(Member(index, count, {}, str(fleet_cache)), telemetry.exposition), telemetry


@asynccontextmanager
async def two(fleet_cache: Path) -> AsyncIterator[list[ProcessMetrics]]:
    """Both of two processes."""
    async with AsyncExitStack() as stack:
        both = [process(fleet_cache, index)[0] for index in range(2)]
        for each in both:
            await stack.enter_async_context(each.answering())
        yield both


def samples(exposition: bytes) -> Samples:
    """As Prometheus reads it, but for what changes by itself."""
    families = list(text_string_to_metric_families(exposition.decode()))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def up(exposition: bytes) -> dict[str, float]:
    """Which processes have told their metrics."""
    found = samples(exposition)
    return {dict(labels)["process"]: value for (name, labels), value in found.items() if name.endswith("process_up")}


async def test_whichever_is_asked_tells_what_each_has_counted(tmp_path: Path) -> None:
    async with two(tmp_path) as both:
        told = [samples(await each.exposition()) for each in both]

    assert told[0] == told[1]
    requests = {
        dict(labels)["process"]: value
        for (name, labels), value in told[0].items()
        if name == "fairlane_gateway_requests_total"
    }
    assert requests == {"0": 1, "1": 2}
    assert told[0]["fairlane_gateway_store_up", (("process", "1"),)] == 1
    assert told[0]["fairlane_gateway_process_up", (("process", "1"),)] == 1


async def test_a_merged_sample_differs_from_its_own_by_the_label_alone(tmp_path: Path) -> None:
    alone, telemetry = process(tmp_path, 0, count=1)

    merged = samples(await alone.exposition())

    own = samples(telemetry.exposition())
    assert {
        (name, tuple(label for label in labels if label[0] != "process")): value
        for (name, labels), value in merged.items()
        if not name.endswith("process_up")
    } == own


async def test_a_process_without_siblings_says_what_it_always_said() -> None:
    telemetry = Telemetry()

    assert samples(await ProcessMetrics(None, telemetry.exposition).exposition()) == samples(telemetry.exposition())


async def test_who_scrape_at_the_same_time_share_one_look() -> None:
    looks: list[int] = []

    def look() -> bytes:
        looks.append(len(looks))
        return b"%d" % looks[-1]

    alone = ProcessMetrics(None, look)

    assert await asyncio.gather(*(alone.exposition() for _ in range(5))) == [b"0"] * 5
    assert await alone.exposition() == b"1"


async def test_a_dead_sibling_is_shown_as_down_and_the_one_in_its_place_as_up(tmp_path: Path) -> None:
    living, _ = process(tmp_path, 0)
    dead, _ = process(tmp_path, 1)
    async with dead.answering():
        pass

    assert up(await living.exposition()) == {"0": 1, "1": 0}

    async with dead.answering():
        assert up(await living.exposition()) == {"0": 1, "1": 1}


async def test_a_sibling_that_dies_over_its_answer_is_shown_as_down(tmp_path: Path) -> None:
    living, _ = process(tmp_path, 0)

    def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((100).to_bytes(8, "big") + b"# HELP half")
        writer.close()

    async with await asyncio.start_unix_server(half, tmp_path / "1.sock"):
        assert up(await living.exposition()) == {"0": 1, "1": 0}


async def test_a_sibling_that_says_nothing_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.05)
    living, _ = process(tmp_path, 0)
    over = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_unix_server(silent, tmp_path / "1.sock"):
        assert up(await living.exposition()) == {"0": 1, "1": 0}
        over.set()

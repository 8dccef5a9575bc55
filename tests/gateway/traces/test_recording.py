"""Recording requests: what a trace holds of them, what it never holds, and what a killed gateway leaves of it."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlane.gateway.config import RecordSection
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.insight.request_traces.recorder import (
    BLOCK_TOKENS,
    MOST_WAITING_TOKENS,
    Pseudonyms,
    TraceRecorder,
)
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.scenario import Scenario
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants
from fairlane.scheduler.simulation.trace import Trace, load_trace, text_lines
from tests.support.gateway.recordings import asked
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, Served, serving, settings

pytestmark = pytest.mark.anyio

SECRET = "the heron of Ravensbourne eats at noon "


@asynccontextmanager
async def recording(url: str, folder: Path, **section: Any) -> AsyncIterator[Served]:
    record = RecordSection(enabled=True, folder=str(folder), **section)
    async with serving(settings(url, section={"record": record})) as served:
        yield served


def files(folder: Path) -> list[Path]:
    """The oldest first."""
    return sorted(folder.iterdir())


def written(folder: Path) -> list[dict[str, Any]]:
    """All lines of all files."""
    return [json.loads(line) for path in files(folder) for line in path.read_text().splitlines()]


def requests(folder: Path) -> list[dict[str, Any]]:
    return [line for line in written(folder) if "at_ms" in line]


def read(paths: Sequence[Path]) -> Trace:
    def lines() -> Any:
        for path in paths:
            with path.open("rb") as file:
                yield from text_lines(file)

    return load_trace(lines())


async def test_a_recording_plays_in_the_simulator_with_equal_counts_and_sizes(valkey_url: str, tmp_path: Path) -> None:
    async with recording(valkey_url, tmp_path) as served:
        await served.tenant("acme", limits={"tokens_per_minute": 1_000_000}, weight=2.0)
        await served.tenant("beta")
        plain = await served.post(CHAT, ASKED)
        batch = await served.post(COMPLETIONS, {"model": "tiny", "prompt": ["a b c", "d e f g"], "n": 2}, tenant="beta")
        dated = await served.post(
            CHAT, {**ASKED, "stream": True}, x_fairlane_lane="throughput", x_fairlane_deadline_ms="60000"
        )
        assert {answer.status_code for answer in (plain, batch, dated)} == {200}

    trace = read(files(tmp_path))
    usage = [answer.json()["usage"] for answer in (plain, batch)]
    first, second, third, last = trace.rows

    assert (first.prompt_tokens, first.output_tokens) == (usage[0]["prompt_tokens"], usage[0]["completion_tokens"])
    assert second.prompt_tokens + third.prompt_tokens == usage[1]["prompt_tokens"]
    assert [second.choices, third.choices] == [2, 2]
    assert 2 * (second.output_tokens + third.output_tokens) == usage[1]["completion_tokens"]
    assert (last.lane, last.deadline_ms, last.outcome) == (LaneName.THROUGHPUT, 60_000.0, "ok")
    assert first.tenant == last.tenant != second.tenant == third.tenant
    assert (trace.tenants[first.tenant or ""].weight, dict(trace.tenants[first.tenant or ""].limits)) == (
        2.0, {"tokens_per_minute": 1_000_000},
    )  # fmt: skip

    sizes = Calibration()
    overlay = SyntheticTenants(kv_tokens=sizes.kv_tokens)
    total = (
        Scenario(rows=trace.demand(), overlay=overlay, calibration=sizes, workers=1, seed=0)
        .run(1.0, lambda: None)
        .total
    )
    assert total.requests == 4
    assert total.prompt_tokens == sum(row.prompt_tokens for row in trace.rows)
    assert total.output_tokens == sum(row.choices * row.output_tokens for row in trace.rows)


async def test_no_content_and_no_name_of_a_tenant_is_in_a_recording(valkey_url: str, tmp_path: Path) -> None:
    async with recording(valkey_url, tmp_path) as served:
        secret = await served.tenant("acme-of-ravensbourne")
        served.worker.say("herons of Ravensbourne")
        answer = await served.post(
            CHAT,
            {"model": "tiny", "messages": [{"role": "user", "content": SECRET * 12}], "user": "someone"},
            tenant="acme-of-ravensbourne",
        )
        assert answer.status_code == 200

    (path,) = files(tmp_path)
    (row,) = requests(tmp_path)
    content = path.read_bytes()
    for word in (b"heron", b"avensbourne", b"noon", b"acme", b"someone", secret.encode(), secret[:12].encode()):
        assert word not in content
    assert len(row["prefix"]) == row["prompt_tokens"] // BLOCK_TOKENS > 1
    assert not path.stat().st_mode & 0o077


async def test_what_is_refused_is_recorded_with_its_reason(valkey_url: str, tmp_path: Path) -> None:
    async with recording(valkey_url, tmp_path) as served:
        await served.tenant("acme", limits={"requests_per_minute": 1})
        await served.post(CHAT, ASKED)
        limited = await served.post(CHAT, ASKED)
        wrong = await served.post(CHAT, {"model": "tiny"})
        assert (limited.status_code, wrong.status_code) == (429, 400)

    assert [(row.get("outcome", "ok"), row["output_tokens"] > 0) for row in requests(tmp_path)] == [
        ("ok", True), ("rate_limit_exceeded", False),
    ]  # fmt: skip


async def test_nothing_is_recorded_unless_it_is_asked_for(valkey_url: str, tmp_path: Path) -> None:
    async with serving(settings(valkey_url, section={"record": RecordSection(folder=str(tmp_path))})) as served:
        await served.tenant()
        assert (await served.post(CHAT, ASKED)).status_code == 200

    assert files(tmp_path) == []


async def test_all_gateways_give_the_same_names(valkey_url: str, tmp_path: Path) -> None:
    long = {"model": "tiny", "messages": [{"role": "user", "content": SECRET * 10}]}
    async with recording(valkey_url, tmp_path / "0") as served:
        await served.tenant("acme", share_group="family")
        await served.tenant("beta", share_group="family")
        keys = served.keys
        await served.post(CHAT, long)
    async with recording(valkey_url, tmp_path / "1") as served:
        served.keys.update(keys)
        await served.post(CHAT, long)
        await served.post(CHAT, long, tenant="beta")

    (first,), (again, other) = (requests(tmp_path / number) for number in ("0", "1"))
    assert first["tenant"] == again["tenant"] != other["tenant"]
    assert first["prefix"] == again["prefix"] == other["prefix"], "of one share group, whose prompts begin alike"


def test_names_say_nothing_without_their_key() -> None:
    prompt = [*range(3 * BLOCK_TOKENS + 5)]
    one, other = Pseudonyms(bytes(32)), Pseudonyms(bytes([1] * 32))

    names = one.blocks("acme ", prompt)

    assert len(names) == 3
    assert names == Pseudonyms(bytes(32)).blocks("acme ", prompt)
    assert names[:2] == one.blocks("acme ", [*prompt[: 2 * BLOCK_TOKENS], *[7] * BLOCK_TOKENS])[:2]
    assert not set(names) & set(other.blocks("acme ", prompt)), "whoever guesses needs the key"
    assert not set(names) & set(one.blocks("beta ", prompt)), "and who sent the same is not told"
    assert one.tenant("acme", 1.0) == one.tenant("acme", 1.0) != one.tenant("acme", 2.0)
    assert one.tenant("acme", 1.0) != other.tenant("acme", 1.0)
    assert one.blocks("acme ", prompt[: BLOCK_TOKENS - 1]) == ()


async def test_files_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path, most_recorded=3)

    async def key() -> bytes:
        return bytes(32)

    recorder = TraceRecorder(folder, key, most_bytes=4_096)
    for number in range(40):
        for each in range(20):
            recorder.ended(asked(tenant=f"acme-{each}", prompt=[number] * 200), [5], None)
        await recorder.flush()
    recorder.close()

    found = folder.listed()
    assert len(found) == 3
    assert all(4_096 <= kept.bytes < 4_096 + 1_000 for kept in found[1:])
    for kept in found:
        path = folder.path(kept.name)
        assert path is not None
        trace = read([path])
        assert {row.tenant for row in trace.rows} <= trace.tenants.keys(), "each file says who its tenants are"


async def test_what_waits_to_be_written_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def key() -> bytes:
        return bytes(32)

    recorder = TraceRecorder(TraceFolder(tmp_path, most_recorded=3), key)
    long = range(MOST_WAITING_TOKENS // 3)
    for _ in range(5):
        recorder.ended(asked(prompt=long), [5], None)
    await recorder.flush()
    recorder.ended(asked(), [5], None)
    await recorder.flush()
    recorder.close()

    assert [row["prompt_tokens"] for row in requests(tmp_path)] == [len(long)] * 3 + [3]
    assert "2 requests were not recorded" in caplog.text


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.gateway.insight.request_traces.recorder import TraceRecorder
from tests.support.gateway.recordings import asked

async def key():
    return bytes(32)

async def main():
    recorder = TraceRecorder(TraceFolder(Path(sys.argv[1]), most_recorded=3), key)
    for number in range(100):
        recorder.ended(asked(prompt=[number] * 200), [5], None)
    await recorder.flush()
    recorder.ended(asked(), [5], None)
    (path,) = Path(sys.argv[1]).iterdir()
    with path.open("ab") as torn:
        torn.write(b'{"at_ms": 17')
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_gateway_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)  # noqa: ASYNC221

    assert killed.returncode == -9
    assert len(read(files(tmp_path)).rows) == 100


async def test_a_full_disk_is_no_request_s_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")

    async def key() -> bytes:
        return bytes(32)

    recorder = TraceRecorder(TraceFolder(tmp_path / "file", most_recorded=3), key)
    recorder.ended(asked(), [5], None)
    await recorder.flush()

    assert "requests are not recorded" in caplog.text

"""`fairlane record`: recordings of gateways, followed into one trace."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlane.cli.simulation.record import Follower
from fairlane.gateway.insight.request_traces.files import TraceFolder
from fairlane.scheduler.simulation.trace import load_trace, text_lines
from tests.support.gateway.commands_bench import Command, gateway

HEAD = '{"fairlane_trace":1,"block_tokens":%d}\n'
TENANT = '{"tenant":"t-1","limits":{}}\n'


def row(at_ms: float, tenant: str = "t-1") -> str:
    return f'{{"at_ms":{at_ms:.1f},"tenant":"{tenant}","lane":"latency","prompt_tokens":9,"output_tokens":3}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> TraceFolder:
    return TraceFolder(tmp_path / "traces", most_recorded=9)


@pytest.fixture
def command(valkey_url: str, folder: TraceFolder) -> Iterator[Command]:
    with gateway(valkey_url, folder) as (url, fleet):
        yield Command(url, fleet)


def test_all_files_become_one_trace(command: Command, folder: TraceFolder, tmp_path: Path) -> None:
    folder.new("recorded").write_text(HEAD % 128 + TENANT + row(1e12) + row(1e12 + 5))
    folder.new("recorded").write_text(HEAD % 64 + TENANT + row(1e12 + 9) + row(1e12 + 7)[:20])
    folder.new("uploaded").write_text("not recorded")

    said = command.ok("record", str(tmp_path / "out.jsonl"), "--all", "--for", "0")

    with (tmp_path / "out.jsonl").open("rb") as file:
        trace = load_trace(text_lines(file))
    assert said.startswith("3 requests in ")
    assert [(each.at_ms, each.block_tokens) for each in trace.rows] == [(0.0, 128), (5.0, 128), (9.0, 64)]
    assert trace.tenants.keys() == {"t-1"}


def test_only_what_comes_from_now_on(command: Command, folder: TraceFolder, tmp_path: Path) -> None:
    now_ms = time.time() * 1e3
    folder.new("recorded").write_text(HEAD % 128 + TENANT + row(now_ms - 60_000) + row(now_ms + 60_000, "t-2"))

    command.ok("record", str(tmp_path / "out.jsonl"), "--for", "0")

    with (tmp_path / "out.jsonl").open("rb") as file:
        assert [each.tenant for each in load_trace(text_lines(file)).rows] == ["t-2"]


def test_a_line_that_is_being_written_is_taken_when_it_is_whole(tmp_path: Path, folder: TraceFolder) -> None:
    class Gateway:
        def all(self, _: str) -> list[dict[str, object]]:
            return [{"name": each.name, "kind": each.kind, "bytes": each.bytes} for each in folder.listed()]

        def stream(self, path: str, *, offset: int) -> Iterator[bytes]:
            found = folder.path(path.removeprefix("/traces/"))
            assert found is not None
            yield found.read_bytes()[offset:]

    path, whole = folder.new("recorded"), HEAD % 128 + row(1.0) + row(2.0)
    with (tmp_path / "out").open("xb") as target:
        follower = Follower([Gateway()], target, since_ms=0.0, most_bytes=10_000)  # type: ignore[list-item]
        for upto in (30, 70, 150, len(whole)):
            path.write_text(whole[:upto])
            follower.look()

    assert (tmp_path / "out").read_text() == whole
    assert follower.requests == 2


def test_a_trace_ends_where_it_is_full(tmp_path: Path, command: Command, folder: TraceFolder) -> None:
    folder.new("recorded").write_text(HEAD % 128 + "".join(row(1e12 + n) for n in range(20_000)))

    command.ok("record", str(tmp_path / "out.jsonl"), "--all", "--max-mib", "1")

    assert 2**20 <= (tmp_path / "out.jsonl").stat().st_size < 2**20 + 200


def test_what_is_there_is_not_overwritten(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("dear")

    refused = command.run("record", str(tmp_path / "out.jsonl"), "--for", "0")

    assert (refused.exit_code, refused.stderr) == (
        2,
        f"fairlane: {tmp_path / 'out.jsonl'}: cannot be created (File exists)\n",
    )
    assert (tmp_path / "out.jsonl").read_text() == "dear"


def test_a_gateway_that_is_not_there_is_told_at_once(command: Command, tmp_path: Path) -> None:
    line = command.fails("record", str(tmp_path / "out.jsonl"), "--url", "http://127.0.0.1:9")

    assert "no gateway answers at http://127.0.0.1:9" in line
    assert not (tmp_path / "out.jsonl").exists()


def test_who_records_nothing_is_told_how(command: Command, tmp_path: Path) -> None:
    done = command.run("record", str(tmp_path / "out.jsonl"), "--for", "0")

    assert done.exit_code == 0
    assert "FAIRLANE_GATEWAY__RECORD__ENABLED=true" in done.stderr

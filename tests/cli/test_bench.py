"""`fairlane bench` against a gateway whose worker speaks from a script."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.cli.bench.load import BenchRequest, PromptMaker, public_name
from fairlane.cli.bench.results import Gaps, LaneTarget, Measured, group
from fairlane.scheduler.protocol.lanes import LaneName
from tests.support.gateway.served import Served, serving, settings, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url)) as found:
        await found.tenant("acme")
        yield found


async def bench(served: Served, *arguments: str, keys: tuple[str, ...] | None = None) -> Result:
    """Run the command to its end, beside the gateway."""
    given = [word for key in ((served.keys["acme"],) if keys is None else keys) for word in ("--key", key)]
    environ = {"FAIRLANE_URL": served.url, "OPENAI_API_KEY": ""}
    return await asyncio.to_thread(CliRunner().invoke, cli.app, ["bench", *given, *arguments], env=environ)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


async def report_of(served: Served, file: Path, *arguments: str, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    """What a run that must succeed wrote."""
    done = await bench(served, *arguments, "--json", str(file), keys=keys)
    assert done.exit_code == 0, done.output
    return read(file)


async def test_a_closed_loop_tells_what_the_ledger_says(served: Served, tmp_path: Path) -> None:
    small = ("--requests", "12", "--concurrency", "3", "--prompt-tokens", "5:9", "--output-tokens", "4")

    found = await report_of(served, tmp_path / "a.json", *small, "--latency-share", "0.5")

    await served.landed()
    entries = await served.entries()
    total = found["total"]
    assert (total["requests"], total["ended"], total["errors"]) == (12, 12, {})
    assert total["prompt_tokens"] == sum(entry.prompt_tokens for entry in entries)
    assert total["output_tokens"] == sum(entry.output_tokens for entry in entries) == 48
    assert {lane: each["requests"] for lane, each in found["lanes"].items()} == {
        lane: sum(entry.lane == lane for entry in entries) for lane in ("latency", "throughput")
    }
    assert 0.0 < total["ttft_ms"]["p50"] <= total["ttft_ms"]["p99"] <= total["e2e_ms"]["p99"]
    assert all(each["first_s"] <= each["last_s"] <= each["end_s"] for each in found["requests"])
    assert max(lease.job.max_tokens for lease in served.worker.seen) == 4


async def test_prompts_have_their_lengths_and_are_all_different(served: Served, tmp_path: Path) -> None:
    found = await report_of(served, tmp_path / "a.json", "-n", "6", "--prompt-tokens", "40", "--output-tokens", "1")

    prompts = {tuple(lease.job.prompt) for lease in served.worker.seen}
    assert len(prompts) == 6
    assert {len(prompt) for prompt in prompts} == {40}
    assert found["total"]["prompt_tokens"] == 240


async def test_a_second_run_asks_the_same_only_where_that_is_wanted(served: Served) -> None:
    asked = ("-n", "2", "--prompt-tokens", "40", "--output-tokens", "1")

    async def prompts(*more: str) -> set[tuple[int, ...]]:
        served.worker.seen.clear()
        assert (await bench(served, *asked, *more)).exit_code == 0
        return {tuple(lease.job.prompt) for lease in served.worker.seen}

    assert not await prompts() & await prompts()
    assert await prompts("--same-prompts") == await prompts("--same-prompts")


async def test_a_trace_is_replayed_with_its_lanes_and_times(served: Served, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n5.0,10,2\n5.0,20,3\n9.0,30,4\n")

    found = await report_of(served, tmp_path / "a.json", "--trace", str(trace), "--speed", "40", "--latency-share", "0")

    sent = sorted((each["at_s"], each["prompt_tokens"], each["output_tokens"]) for each in found["requests"])
    assert sorted(each[1:] for each in sent) == [(10, 2), (20, 3), (30, 4)]
    assert sent[-1][0] > 0.05
    assert [*found["lanes"]] == ["throughput"]


async def test_a_recorded_trace_has_its_lanes_tenants_and_shared_beginnings(served: Served, tmp_path: Path) -> None:
    await served.tenant("other")
    trace = tmp_path / "trace.jsonl"
    asked = {"prompt_tokens": 12, "output_tokens": 2, "prefix": [7]}
    rows = [
        {"fairlane_trace": 1, "block_tokens": 8},
        {"at_ms": 1000, "tenant": "p1", "lane": "latency", **asked},
        {"at_ms": 1020, "tenant": "p2", "lane": "throughput", **asked},
        {"at_ms": 1010, "tenant": "p1", "lane": "latency", **asked, "prefix": [9]},
    ]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    keys = (served.keys["acme"], served.keys["other"])

    found = await report_of(served, tmp_path / "a.json", "--trace", str(trace), keys=keys)

    sent = {(each["lane"], each["tenant"]) for each in found["requests"]}
    assert sent == {("latency", public_name(keys[0], 1)), ("throughput", public_name(keys[1], 2))}
    beginnings = [tuple(lease.job.prompt)[:8] for lease in served.worker.seen]
    assert len(beginnings) == 3
    assert len(set(beginnings)) == 2
    assert len({tuple(lease.job.prompt) for lease in served.worker.seen}) == 3


async def test_keys_share_the_load_by_their_weights(served: Served, tmp_path: Path) -> None:
    await served.tenant("other")
    keys = tmp_path / "keys"
    keys.write_text(f"# who asks\nbig {served.keys['acme']} 9\nsmall {served.keys['other']} 1\n")

    small = ("-n", "40", "--output-tokens", "1", "--prompt-tokens", "4", "--json", str(tmp_path / "a"))
    done = await bench(served, "--keys", str(keys), *small, keys=())
    assert done.exit_code == 0, done.output
    report = read(tmp_path / "a")
    assert report["tenants"]["big"]["requests"] > 3 * report["tenants"]["small"]["requests"] > 0
    assert len(await served.entries("acme")) == report["tenants"]["big"]["requests"]
    assert served.keys["acme"] not in (tmp_path / "a").read_text() + done.output


async def test_refusals_are_counted_by_code_and_are_no_goodput(served: Served, tmp_path: Path) -> None:
    key = await served.tenant("small", limits={"requests_per_minute": 3})

    found = await report_of(
        served,
        tmp_path / "a.json",
        "-n",
        "5",
        "--rate",
        "1000",
        "--output-tokens",
        "2",
        "--prompt-tokens",
        "4",
        keys=(key,),
    )

    assert found["total"]["errors"] == {"rate_limit_exceeded": 2}
    assert found["total"]["ended"] == 3
    assert found["total"]["goodput"] <= 0.6


async def test_goodput_is_what_kept_to_the_targets(served: Served, tmp_path: Path) -> None:
    asked = ("-n", "3", "--output-tokens", "2", "--prompt-tokens", "4")

    kept = await report_of(served, tmp_path / "a.json", *asked, "--target", "latency:100000:100000")
    missed = await report_of(served, tmp_path / "b.json", *asked, "--target", "latency:0.001:100000")

    assert (kept["total"]["goodput"], missed["total"]["goodput"]) == (1.0, 0.0)


async def test_messages_are_asked_for_in_words(served: Served, tmp_path: Path) -> None:
    found = await report_of(
        served, tmp_path / "a.json", "-n", "2", "--api", "chat", "--prompt-tokens", "6", "--output-tokens", "3"
    )

    assert found["total"]["ended"] == 2
    assert found["total"]["output_tokens"] == 6


async def test_a_run_that_is_interrupted_tells_what_it_has(served: Served, tmp_path: Path) -> None:
    served.worker.limit = 2  # no answer ends

    environ = {**os.environ, "FAIRLANE_URL": served.url, "OPENAI_API_KEY": served.keys["acme"]}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from fairlane.cli.main import main; main()",
        "bench",
        "--concurrency",
        "2",
        "--json",
        str(tmp_path / "a.json"),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: sum(len(made) >= 2 for made in served.worker.produced.values()) == 2)
    process.send_signal(signal.SIGINT)
    shown, said = await process.communicate()

    assert process.returncode == 130, said
    assert b"interrupted" in shown
    found = read(tmp_path / "a.json")
    assert found["interrupted"]
    assert found["total"]["errors"] == {"cancelled": 2}
    await until(lambda: not served.worker.leases)


def test_help_names_what_replaces_the_url() -> None:
    assert (
        "--url is needed unless FAIRLANE_HOST or FAIRLANE_PORT"
        in CliRunner().invoke(cli.app, ["bench", "run", "--help"]).output
    )


def test_no_gateway_is_loaded_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []
    monkeypatch.setattr("fairlane.cli.bench.command.uvloop.run", asked.append)

    unnamed = CliRunner().invoke(cli.app, ["bench", "--key", "k"], env={"FAIRLANE_URL": None})
    (line,) = unnamed.stderr.splitlines()
    assert unnamed.exit_code == 1
    assert "--url http://127.0.0.1:8000" in line
    assert asked == []

    (tmp_path / "fairlane.yaml").write_text("port: 8123")
    CliRunner().invoke(cli.app, ["bench", "--key", "k"], env={"FAIRLANE_URL": None})
    (run,) = asked
    run.close()


def test_a_gateway_that_is_not_there_is_one_line_that_names_the_variable() -> None:
    done = CliRunner().invoke(cli.app, ["bench", "--key", "k", "--url", "http://127.0.0.1:9"])

    (line,) = done.stderr.splitlines()
    assert done.exit_code == 1
    assert "FAIRLANE_URL" in line


async def test_a_wrong_key_is_told_in_the_gateway_s_words(served: Served) -> None:
    done = await bench(served, "-n", "1", keys=("wrong",))

    assert done.exit_code == 1
    assert "invalid_api_key" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "1", "--concurrency", "2"), "--rate"),
        (("--prompt-tokens", "9:1"), "--prompt-tokens"),
        (("--target", "latency:fast"), "--target"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--keys", "nowhere"), "nowhere"),
        (("--json", "/no/such/place.json"), "/no/such/place.json"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(cli.app, ["bench", "--key", "k", *arguments])

    (line,) = done.stderr.splitlines()
    assert done.exit_code == 1
    assert words in line


async def test_two_runs_are_compared(served: Served, tmp_path: Path) -> None:
    for name, count in (("a", "2"), ("b", "4")):
        await report_of(served, tmp_path / name, "-n", count, "--output-tokens", "2", "--prompt-tokens", "4")
    files = str(tmp_path / "a"), str(tmp_path / "b")

    done = CliRunner().invoke(cli.app, ["bench", "compare", *files, "-o", "json"])
    table = CliRunner().invoke(cli.app, ["bench", "compare", *files])
    same = CliRunner().invoke(cli.app, ["bench", "compare", files[0], files[0], "-o", "json"])

    rows = {row["figure"]: row for row in json.loads(done.stdout)}
    assert rows["all goodput"]["change"] == 0.0
    assert rows["latency TTFT p50 ms"]["a"] > 0.0
    assert "requests: 2 and 4" in table.stderr
    assert {row["change"] for row in json.loads(same.stdout)} <= {0.0, None}
    (tmp_path / "c").write_text("{}")
    assert "is not a result" in CliRunner().invoke(cli.app, ["bench", "compare", files[0], str(tmp_path / "c")]).stderr


def test_prompts_agree_as_far_as_a_trace_says() -> None:
    maker = PromptMaker("7", range(1000))

    def prompt(number: int, *blocks: int) -> list[int]:
        request = BenchRequest(
            number=number,
            at_s=0,
            lane=LaneName.LATENCY,
            key=0,
            prompt_tokens=25,
            output_tokens=1,
            hash_ids=blocks,
            block_tokens=10,
        )
        found = maker.prompt(request)
        assert isinstance(found, list)
        return found

    one, two, same = prompt(1, 5, 6), prompt(2, 5, 7), prompt(1, 5, 6)

    assert one == same
    assert len(one) == 25
    assert one[:10] == two[:10]
    assert one[10:20] != two[10:20]
    assert one[20:] != two[20:]


def test_gaps_are_told_to_a_percent() -> None:
    gaps = Gaps()
    for milliseconds in range(1, 101):
        gaps.add(milliseconds / 1e3)

    found = (gaps + Gaps()).spread()

    assert found is not None
    assert found.p50 == pytest.approx(50, rel=0.01)
    assert found.p99 == pytest.approx(99, rel=0.01)
    assert Gaps().spread() is None


def test_figures_follow_from_what_was_measured() -> None:
    requests = [
        Measured(number=0, lane="latency", tenant="a", at_s=0, first_s=0.1, last_s=0.5, end_s=0.6, output_tokens=5),
        Measured(number=1, lane="latency", tenant="a", at_s=0, first_s=0.3, last_s=0.3, end_s=0.3, output_tokens=1),
        Measured(number=2, lane="latency", tenant="a", at_s=0, code="overloaded"),
    ]

    found = group(requests, None, 2.0, {"latency": LaneTarget(200, 100)})

    assert found.ttft_ms is not None
    assert (found.ttft_ms.mean, found.ttft_ms.p50, found.ttft_ms.p99) == pytest.approx((200, 100, 300))
    assert found.tpot_ms is not None
    assert found.tpot_ms.p50 == pytest.approx(100)
    assert found.goodput == pytest.approx(1 / 3)
    assert (found.requests_per_s, found.output_tokens_per_s) == (1.0, 3.0)
    assert found.errors == {"overloaded": 1}

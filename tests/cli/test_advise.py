"""`fairlane advise` through the command: what it says, as a document and as tables, and what it refuses."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.cli.simulation import advise as advising
from fairlane.scheduler.simulation.calibration import Calibration

pytestmark = pytest.mark.slow

COSTS = Calibration(step=(5.0, 0.5, 0.1, 0.0, 0.0), copy=(0.1, 0.1), blocks=256, host_slots=64, max_sequences=16)
HEAD = {"fairlane_trace": 1, "block_tokens": 64}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "costs.json").write_bytes(COSTS.to_json())
    rows: list[dict[str, Any]] = [
        {"tenant": "t-1", "limits": {"requests_per_minute": 100, "tokens_per_day": 100_000_000}},
        *(
            {
                "at_ms": 1e12 + 20 * n,
                "tenant": f"t-{n % 2 + 1}",
                "lane": "latency" if n % 3 else "throughput",
                "prompt_tokens": 40 + n % 90,
                "output_tokens": 5 + n % 7,
            }
            for n in range(120)
        ),
        {
            "at_ms": 1e12 + 2_390,
            "tenant": "t-1",
            "lane": "latency",
            "prompt_tokens": 40,
            "output_tokens": 0,
            "outcome": "rate_limit_exceeded",
        },
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (HEAD, *rows)))
    return tmp_path


class _OwnThreads(ThreadPoolExecutor):
    """A pool of processes without processes: each would import the simulator anew."""

    def __init__(self, most: int, mp_context: object, **options: Any) -> None:
        super().__init__(most, **options)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advising, "ProcessPoolExecutor", _OwnThreads)


def advise(*arguments: str) -> Result:
    given = ["advise", "--trace", "trace.jsonl", "--costs", "costs.json", "--processes", "1", *arguments]
    return CliRunner().invoke(cli.app, given)


def test_it_says_how_many_workers_and_shows_the_evidence() -> None:
    done = advise("-o", "json")

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["requests"], document["played"]["requests"]) == (120, 120)
    keeping = [each["workers"] for each in document["counts"] if each["keeps"]]
    assert document["workers"] == min(keeping)
    assert all(each["misses"] for each in document["counts"] if not each["keeps"])
    assert len(document["knobs"]) == 6
    assert done.stderr == "1 request refused by a limit is left out\n"
    tightest, other = document["headroom"]
    assert (tightest["limit"], tightest["used"], tightest["refused"]) == ("requests_per_minute", 60, 1)
    assert (other["limit"], other["projected"]) == ("tokens_per_day", True)


@pytest.mark.usefixtures("in_this_process")
def test_people_read_tables() -> None:
    done = advise("--requests", "60", "--no-knobs")

    assert done.exit_code == 0, done.output
    assert "the lanes' targets (each for 99 % of its requests)" in done.stdout
    assert "Played: 60 of the 120 requests" in done.stdout
    for words in ("Counts that were simulated", "drain allowed", "Tenants' limits", "requests_per_minute"):
        assert words in done.stdout


@pytest.mark.usefixtures("in_this_process")
def test_of_one_worker_there_are_no_fewer() -> None:
    alone, several = advise("--load", "0.1", "-o", "json"), advise("--requests", "60")

    document = json.loads(alone.stdout)
    assert (document["workers"], document["knobs"]) == (1, [])
    assert "Other settings, with fewer workers" not in advise("--load", "0.1").stdout
    assert "Other settings, with fewer workers" in several.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ttft-s", "0.001"), "more workers do not help"),
        (("--ttft-s", "-1"), "ttft_s must be above 0"),
        (("--tpot-ms", "nan"), "tpot_ms must be above 0"),
        (("--load", "0"), "load must be above 0"),
        (("--hardware", "l4-8b"), "--hardware cannot be combined"),
        (("--slice", "900:5"), "no request arrives"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = advise(*arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert words in line


@pytest.mark.usefixtures("in_this_process")
def test_it_says_when_the_store_is_the_limit_and_how_many_shards_it_takes() -> None:
    done = advise("--store-us", "put=15000,turn=15000+1", "--no-knobs")
    plain = advise("--no-knobs")

    assert done.exit_code == plain.exit_code == 0, done.output
    [line] = [line for line in done.stdout.splitlines() if line.startswith("The store is the limit: ")]
    assert line.endswith("of which 70 % are usable; it takes 3 shards (docs/scaling.md).")
    assert "The store is the limit" not in plain.stdout

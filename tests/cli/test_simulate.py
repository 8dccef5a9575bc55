"""`fairlane simulate`: a small trace through the command, what it prints and writes, and what it refuses."""

import errno
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.scheduler.simulation.calibration import Calibration

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{0.5 * number:.3f},{20 + 7 * (number % 9)},{3 + number % 5}\n" for number in range(40)
)
COSTS = Calibration(step=(5.0, 0.5, 0.1, 0.0, 0.0), copy=(0.1, 0.1), blocks=64, host_slots=64, max_sequences=8)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "costs.json").write_bytes(COSTS.to_json())
    return tmp_path


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["simulate", *arguments])


def figures(directory: Path, *arguments: str) -> Any:
    """What the command writes as JSON."""
    done = simulate("--trace", "trace.csv", "--costs", "costs.json", "--json", "out.json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads((directory / "out.json").read_text())


def refused(*arguments: str) -> str:
    """The one line that it says."""
    done = simulate(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("fairlane: ")
    return line.removeprefix("fairlane: ")


@pytest.fixture
def metrics_port() -> Iterator[dict[str, Any]]:
    """What stands at `/costs` of a worker's metrics port; `url` says where."""
    shown: dict[str, Any] = {"status": 200, "body": COSTS.to_json()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(shown["status"] if self.path == "/costs" else 404)
            self.end_headers()
            self.wfile.write(shown["body"])

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        shown["url"] = f"http://127.0.0.1:{server.server_port}"
        yield shown
        server.shutdown()
        thread.join()


def test_the_door_refuses_what_states_a_limit_that_cannot_be_kept(directory: Path) -> None:
    slow = Calibration(step=(100.0, 1.0, 1.0, 0.0, 0.0), copy=(0.1, 0.1), blocks=64, host_slots=64, max_sequences=8)
    (directory / "costs.json").write_bytes(slow.to_json())

    patient = figures(directory, "--latency-share", "1")["runs"][0]["summary"]["total"]["outcomes"]
    pressed = figures(directory, "--latency-share", "1", "--ttft-limit", "0.1")["runs"][0]["summary"]["total"][
        "outcomes"
    ]

    assert patient == {"finished": 40}
    assert pressed["rejected"] > 10, "from when it knows how long a step takes"
    assert sum(pressed.values()) == 40


def test_it_shows_lanes_tenants_and_loads() -> None:
    done = simulate("--trace", "trace.csv", "--costs", "costs.json", "--tenants", "3", "--load", "1", "--load", "20")

    assert done.exit_code == 0, done.output
    for words in ("load 1, by lane", "load 20, by tenant", "latency", "throughput", "tenant-3", "preemption tax"):
        assert words in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_same_seed_gives_the_same_figures(directory: Path, workers: str) -> None:
    runs = [figures(directory, "--workers", workers, "--seed", seed, "--load", "5") for seed in ("1", "1", "2")]

    assert runs[0] == runs[1]
    assert runs[0]["runs"] != runs[2]["runs"]


def test_every_request_of_the_trace_is_in_the_figures(directory: Path) -> None:
    document = figures(directory, "--load", "2", "--load", "50", "--tenants", "4", "--workers", "2")

    assert (document["trace"], document["requests"], document["workers"]) == ("trace.csv", 40, 2)
    assert [run["load"] for run in document["runs"]] == [2.0, 50.0]
    for run in document["runs"]:
        summary = run["summary"]
        assert summary["total"]["outcomes"] == {"finished": 40}
        assert sum(lane["requests"] for lane in summary["lanes"].values()) == 40
        assert sum(tenant["requests"] for tenant in summary["tenants"].values()) == 40
        assert summary["service"].keys() == summary["tenants"].keys()
    slow, fast = document["runs"]
    assert slow["summary"]["duration_s"] > fast["summary"]["duration_s"]
    assert {name: group["requests"] for name, group in slow["summary"]["tenants"].items()} == {
        name: group["requests"] for name, group in fast["summary"]["tenants"].items()
    }


def test_a_thousand_workers_can_be_simulated(directory: Path) -> None:
    document = figures(directory, "--workers", "1000", "--load", "10")

    assert document["runs"][0]["summary"]["total"]["attained"] == 1.0


def test_a_slice_and_sizes_of_its_own(directory: Path) -> None:
    document = figures(
        directory,
        "--slice",
        "5:10",
        "--blocks",
        "12",
        "--host-slots",
        "0",
        "--max-sequences",
        "2",
        "--latency-share",
        "1",
    )

    assert document["requests"] == 20
    assert {name: document["calibration"][name] for name in ("blocks", "host_slots", "max_sequences")} == {
        "blocks": 12, "host_slots": 0, "max_sequences": 2,
    }  # fmt: skip
    assert list(document["runs"][0]["summary"]["lanes"]) == ["latency"]


def test_hardware_by_name(directory: Path) -> None:
    done = simulate("--trace", "trace.csv", "--hardware", "h100-8b", "--json", "out.json")

    assert done.exit_code == 0, done.output
    document = json.loads((directory / "out.json").read_text())
    assert document["calibration"]["blocks"] * 16 > 400_000
    assert document["runs"][0]["summary"]["total"]["attained"] == 1.0


def test_costs_decide_how_long_it_takes(directory: Path) -> None:
    usual = figures(directory)
    (directory / "costs.json").write_bytes(COSTS.to_json().replace(b"5.0", b"50.0"))
    slow = figures(directory)

    means = [run["runs"][0]["summary"]["total"]["ttft_ms"]["mean"] for run in (usual, slow)]
    assert means[1] > 5 * means[0]


def test_mooncakes_form_is_read(directory: Path) -> None:
    lines = ({"timestamp": 50 * n, "input_length": 30, "output_length": 4, "hash_ids": [0, n]} for n in range(6))
    (directory / "trace.csv").write_text("".join(json.dumps(line) + "\n" for line in lines))

    document = figures(directory)

    assert (document["requests"], document["prefix_cache"]) == (6, True)


@pytest.mark.parametrize(
    ("arguments", "played", "words"),
    [
        ((), 6, "3 requests refused by a limit are left out\n"),
        (("--slice", "0:4.5"), 5, "1 request refused by a limit is left out\n"),
        (("--slice", "0:1.5"), 2, ""),
    ],
)
def test_requests_that_a_limit_refused_are_told_of(
    directory: Path, arguments: tuple[str, ...], played: int, words: str
) -> None:
    sizes = {"tenant": "t-1", "lane": "latency", "prompt_tokens": 40}
    served = [{"at_ms": 1e12 + 1e3 * n, "output_tokens": 5, **sizes} for n in range(6)]
    refused = [{"at_ms": 1e12 + at, "output_tokens": 0, "outcome": "queue_full", **sizes} for at in (3e3, 5e3, 5.1e3)]
    rows = [{"fairlane_trace": 1, "block_tokens": 64}, *served[:4], refused[0], *served[4:], *refused[1:]]
    (directory / "trace.csv").write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = simulate("--trace", "trace.csv", "--costs", "costs.json", "--json", "out.json", *arguments)

    assert done.exit_code == 0, done.output
    assert done.stderr == words
    assert json.loads((directory / "out.json").read_text())["requests"] == played


def test_plots_are_drawn(directory: Path) -> None:
    pytest.importorskip("matplotlib")

    figures(directory, "--plots", "pictures/of/it", "--load", "1", "--load", "9")

    drawn = sorted((directory / "pictures" / "of" / "it").iterdir())
    assert [picture.name for picture in drawn] == ["goodput.png", "latency.png", "service.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in drawn)


def test_plots_are_drawn_as_svg(directory: Path) -> None:
    pytest.importorskip("matplotlib")

    figures(directory, "--plots", "pictures", "--plots-as", "svg")

    assert b"output tokens / s" in (directory / "pictures" / "goodput.svg").read_bytes()


def test_plots_without_matplotlib_are_refused_before_anything_runs(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    assert "fairlane[plots]" in refused("--trace", "trace.csv", "--plots", "pictures")
    assert not (directory / "pictures").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a trace to run (--trace FILE)"),
        (("--costs", "costs.json"), "name a trace to run"),
        (("--trace", "nowhere.csv"), "nowhere.csv: cannot be read (No such file or directory)"),
        (("--trace", "."), "cannot be read (Is a directory)"),
        (("--trace", "binary"), "binary: is not text"),
        (("--trace", "trace.csv", "--costs", "trace.csv"), "trace.csv: JSON is malformed"),
        (("--trace", "trace.csv", "--costs", "nowhere.json"), "nowhere.json: cannot be read"),
        (("--trace", "trace.csv", "--hardware", "abacus-8b"), "hardware must be one of cpu-135m, cpu-1b, cpu-8b"),
        (("--trace", "trace.csv", "--hardware", "l4-1b", "--costs", "costs.json"), "--hardware cannot be combined"),
        (("--trace", "trace.csv", "--blocks", "0"), "blocks: Expected `int` >= 1, not 0"),
        (("--trace", "trace.csv", "--max-sequences", "-1"), "max_sequences: Expected `int` >= 1, not -1"),
        (("--trace", "trace.csv", "--workers", "0"), "workers must be between 1 and 1000, not 0"),
        (("--trace", "trace.csv", "--workers", "1001"), "workers must be between 1 and 1000, not 1001"),
        (("--trace", "trace.csv", "--tenants", "0"), "tenants must be between"),
        (("--trace", "trace.csv", "--zipf", "nan"), "zipf must be between"),
        (("--trace", "trace.csv", "--latency-share", "2"), "latency_share must be between"),
        (("--trace", "trace.csv", "--load", "0"), "load must be above 0"),
        (("--trace", "trace.csv", "--load", "inf"), "load must be above 0"),
        (("--trace", "trace.csv", "--slice", "5"), "--slice must be START:DURATION"),
        (("--trace", "trace.csv", "--slice", "nan:5"), "--slice must be START:DURATION"),
        (("--trace", "trace.csv", "--slice", "500:5"), "trace.csv: no request arrives in the 5 s from 500 s on"),
        (("--trace", "trace.csv", "--json", "no/where.json"), "no/where.json: cannot be written"),
        (("--trace", "trace.csv", "--json", "."), "is a directory"),
        (("--trace", "trace.csv", "--plots", "trace.csv"), "trace.csv: cannot be created (File exists)"),
        (("--trace", "trace.csv", "--plots", "trace.csv/it"), "trace.csv/it: cannot be created (Not a directory)"),
        (("--calibrate", "http://127.0.0.1:9"), "no worker answers at http://127.0.0.1:9/costs"),
        (("--calibrate", "worker"), "no worker answers at worker/costs"),
    ],
)
def test_what_is_wrong_is_one_line(directory: Path, arguments: tuple[str, ...], words: str) -> None:
    (directory / "binary").write_bytes(b"\xff\xfe\x00")
    before = sorted(directory.iterdir())

    assert words in refused(*arguments)
    assert sorted(directory.iterdir()) == before


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("99,5,-1", "output_tokens must be a whole number"),
        ("99,5", "3 columns are expected, not 2"),
        ("nan,5,5", "arrival_s must be a finite number"),
        ("1,5,5", "arrives before row 41"),
        ("99,5000,5", "needs 5005 KV tokens, and the pool holds 1024"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(directory: Path, row: str, words: str) -> None:
    (directory / "trace.csv").write_text(f"{TRACE}{row}\n")
    before = sorted(directory.iterdir())

    line = refused("--trace", "trace.csv", "--costs", "costs.json", "--json", "out.json", "--plots", "pictures")

    assert line.startswith(f"trace.csv: row 42: {words}")
    assert sorted(directory.iterdir()) == before


def test_a_trace_with_several_bad_rows_names_them() -> None:
    done = simulate("--trace", "trace.csv", "--blocks", "2")

    first = "trace.csv: row 4: needs 39 KV tokens, and the pool holds 32"
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == first
    assert done.stderr.splitlines()[-1].startswith(f"fairlane: {first}; ")


def test_bad_rows_are_named_and_left_out_where_that_is_wanted(directory: Path) -> None:
    (directory / "trace.csv").write_text(f"{TRACE}99,5,-1\nnan,5,5\n100,5,5\n")

    done = simulate("--trace", "trace.csv", "--costs", "costs.json", "--bad-rows", "skip", "--json", "out.json")

    assert done.exit_code == 0, done.output
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [" row 42", " row 43", " 2 rows are skipped"]
    assert json.loads((directory / "out.json").read_text())["requests"] == 41


def test_a_directory_that_cannot_be_made_after_all_leaves_nothing_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    before = sorted(directory.iterdir())

    line = refused("--trace", "trace.csv", "--costs", "costs.json", "--json", "out.json", "--plots", "pictures")

    assert line == "pictures: cannot be created (No space left on device)"
    assert sorted(directory.iterdir()) == before


def test_a_byte_order_mark_is_no_part_of_the_columns(directory: Path) -> None:
    (directory / "trace.csv").write_text(TRACE, encoding="utf-8-sig")

    assert figures(directory)["requests"] == 40


def test_costs_come_from_a_running_worker(directory: Path, metrics_port: dict[str, Any]) -> None:
    done = simulate("--calibrate", f"{metrics_port['url']}/metrics", "--costs", "learnt.json")

    assert (done.exit_code, done.output) == (0, "")
    assert json.loads((directory / "learnt.json").read_text())["step"] == [5.0, 0.5, 0.1, 0.0, 0.0]
    assert figures(directory, "--calibrate", metrics_port["url"])["calibration"]["blocks"] == 64


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"", "answers 500: not a worker's metrics port"),
        (200, b"<html>", "does not return a worker's costs"),
        (200, b'{"learnt": false}', "too few steps to know its costs"),
    ],
)
def test_a_worker_that_does_not_know_its_costs_is_no_source(
    directory: Path, metrics_port: dict[str, Any], status: int, body: bytes, words: str
) -> None:
    metrics_port.update(status=status, body=body)

    assert words in refused("--calibrate", metrics_port["url"], "--costs", "learnt.json")
    assert not (directory / "learnt.json").exists()


def test_a_fleet_has_its_store_gateways_and_shards_simulated(directory: Path) -> None:
    found = figures(
        directory, "--workers", "4", "--gateways", "3", "--shards", "2", "--store-us", "put=100,turn=200+20",
        "--workers-as", "rows=4,step_ms=5", "--copies", "3", "--weights", "1,2", "--ttft-limit", "5",
    )  # fmt: skip

    assert found["fleet"]["kind"] == {"rows": 4, "step_ms": 5.0, "step_tokens": 4_096}
    [run] = found["runs"]
    summary = run["summary"]
    assert sum(core["calls"]["put"] for core in summary["shards"]) == 3 * 40
    assert summary["requests"]["total"]["outcomes"] == {"finished": 3 * 40}
    assert (summary["starved_tenants"], summary["broken"]) == (0, 0)
    assert summary["guaranteed"] > 0


def test_a_fleets_workers_are_as_fast_as_those_calibrated_unless_stated() -> None:
    done = simulate("--trace", "trace.csv", "--costs", "costs.json", "--workers", "3", "--shards", "2")

    assert done.exit_code == 0, done.output
    assert "3 workers of 8 rows and steps of" in done.stdout
    assert "queue 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shards", "0"), "shards must be between 1 and 64, not 0"),
        (("--gateways", "1001"), "gateways must be between 1 and 1000, not 1001"),
        (("--store-us", "poll=3"), "store-us must be such as put=190"),
        (("--workers-as", "rows"), "workers-as must be such as rows=64,step_ms=30"),
        (("--weights", "1,x"), "weights must be numbers above 0, such as 1,2,4, not '1,x'"),
        (("--link-ms", "-1"), "link-ms must be between 0.0"),
        (("--worker-deaths", "-1"), "worker-deaths must be between 0.0"),
        (("--copies", "0"), "copies must be between 1"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("--trace", "trace.csv", *arguments)

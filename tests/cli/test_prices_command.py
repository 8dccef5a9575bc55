"""`fairlane prices` and `fairlane usage chargeback` against a running admin API."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairlane.cli.client import CommandError
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.cli.prices import nano, per_million
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
    return Command(*running)


def test_a_row_is_set_shown_and_taken_away(command: Command) -> None:
    command.ok("prices", "set", "--input", "0.05", "--output-tokens", "0.2")
    command.ok("prices", "set", "--model", "tiny", "--input", "0.15", "--cached-input", "0.075", "--output-tokens", "9")
    command.ok("prices", "set", "--model", "tiny", "--input", "0.2", "--output-tokens", "1000.001")

    shown = command.json("prices", "show", "-o", "json")["prices"]
    table = command.ok("prices", "show")
    command.ok("prices", "set", "--model", "tiny", "--remove")

    assert shown == [
        {"model": "*", "lane": "*", "input": 50, "cached_input": 50, "output": 200},
        {"model": "tiny", "lane": "*", "input": 200, "cached_input": 200, "output": 1_000_001},
    ]
    assert "1,000.001" in table
    assert "EUR/M" in table
    assert len(command.json("prices", "show", "-o", "json")["prices"]) == 1
    assert "no row" in command.fails("prices", "set", "--model", "tiny", "--remove")


@pytest.mark.parametrize("amount", ["0.0001", "-0.0001", "free", "", "NaN", "Infinity", "1e-9"])
def test_an_amount_that_no_price_can_be_is_refused(amount: str) -> None:
    with pytest.raises(CommandError, match="million tokens"):
        nano(amount)


@pytest.mark.parametrize("amount", ["0", "0.001", "12.5", "100,000"])
def test_an_amount_is_exact(amount: str) -> None:
    assert per_million(nano(amount.replace(",", ""))).rstrip("0").rstrip(".") in (amount, amount.rstrip("0"), "")


def test_an_absurd_price_and_an_unknown_lane_are_refused_in_the_gateways_words(command: Command) -> None:
    prices = ("--input", "1", "--output-tokens", "1")

    assert "input" in command.fails("prices", "set", "--input=-1", "--output-tokens", "1")
    assert "output" in command.fails("prices", "set", "--input", "1", "--output-tokens", "1000000000")
    assert "lane" in command.fails("prices", "set", "--lane", "express", *prices)
    assert "needed" in command.fails("prices", "set", "--input", "1")


def test_a_file_is_applied_once(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    rows = [{"model": "tiny", "lane": "latency", "input": 150, "output": 600}, {"input": 1, "output": 2}]
    file.write_text(yaml.safe_dump({"prices": rows}))

    planned = command.ok("prices", "apply", "-f", str(file), "--dry-run")
    untouched = command.json("prices", "show", "-o", "json")["version"]
    command.ok("prices", "apply", "-f", str(file))
    again = command.ok("prices", "apply", "-f", str(file))

    assert "create model tiny, lane latency: input 150, cached_input 150, output 600" in planned
    assert untouched == 0
    assert "create" not in again
    assert command.json("prices", "show", "-o", "json")["version"] == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prices: [{input: -1, output: 1}]", "prices.0.input"),
        ("prices: [{input: 1, output: 1}, {model: a, input: 1}]", "prices.1.output"),
        ("prices: 5", "prices"),
        ("rows: []", "prices"),
        ("{", "YAML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_row_and_field(
    command: Command, tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)

    assert named in command.fails("prices", "apply", "-f", str(file))


def test_a_chargeback_is_written_as_csv(command: Command) -> None:
    rows = list(csv.DictReader(io.StringIO(command.ok("usage", "chargeback", "--month", "2026-01"))))

    assert [(row["kind"], row["cost"], row["month"]) for row in rows] == [("total", "0", "2026-01")]

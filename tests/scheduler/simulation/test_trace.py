"""Recorded traces, bad rows that are left out, and files that are hostile."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.scenario import Scenario
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants
from fairlane.scheduler.simulation.trace import (
    MAX_LINE_BYTES,
    MAX_NAMED,
    BadRows,
    TraceError,
    load_trace,
    text_lines,
)

TRACES = Path(__file__).parents[3] / "benchmarks" / "scheduling" / "traces"
HEAD = {"fairlane_trace": 1, "started_at": 1_790_000_000.0, "block_tokens": 64}


def request(at_ms: float, **fields: Any) -> dict[str, Any]:
    own = {"at_ms": at_ms, "tenant": "t-1", "lane": "latency", "prompt_tokens": 200, "output_tokens": 8}
    return own | fields


def lines(*rows: dict[str, Any]) -> list[str]:
    return [json.dumps(row) + "\n" for row in (HEAD, *rows)]


def test_a_recorded_trace_is_in_order_of_arrival_and_says_whose_each_request_is() -> None:
    limits = {"tenant": "t-1", "weight": 2.0, "limits": {"tokens_per_minute": 5_000}}
    trace = load_trace(
        lines(limits, request(5_000.0, n=2, output_tokens=7), request(2_000.0, lane="throughput", tenant="t-2"))
    )

    assert [(row.at_ms, row.tenant, row.lane, row.choices, row.output_tokens) for row in trace.rows] == [
        (0.0, "t-2", LaneName.THROUGHPUT, 1, 8),
        (3_000.0, "t-1", LaneName.LATENCY, 2, 4),
    ]
    assert trace.tenants["t-1"].weight == 2.0
    assert trace.tenants["t-1"].limits == {"tokens_per_minute": 5_000}


def test_what_a_trace_says_is_not_dealt_out() -> None:
    trace = load_trace(
        lines(
            request(1.0, tenant="t-9", lane="throughput", max_tokens=50),
            request(2.0, tenant="t-8", ttft_ms=400.0, deadline_ms=9_000.0, n=2),
        )
    )

    batch, chat = SyntheticTenants(weights={"t-9": 3.0}).arrivals(trace.demand())

    assert (batch.tenant, batch.weight, batch.lane, batch.max_tokens) == ("t-9", 3.0, LaneName.THROUGHPUT, 50)
    assert batch.deadline_ms is None
    assert (chat.tenant, chat.choices, chat.ttft_ms) == ("t-8", 2, 400.0)
    assert (chat.hard_ttft_ms, chat.deadline_ms) == (400.0, 9_000.0)


def test_refused_requests_are_demand_unless_a_limit_of_their_tenant_refused_them() -> None:
    rows = load_trace(
        lines(
            request(1.0, output_tokens=10),
            request(2.0, output_tokens=30),
            request(3.0, output_tokens=20),
            request(4.0, output_tokens=0, outcome="overloaded"),
            request(5.0, output_tokens=0, outcome="overloaded", max_tokens=5),
            request(6.0, output_tokens=0, outcome="rate_limit_exceeded"),
        )
    ).demand()

    assert [row.output_tokens for row in rows] == [10, 30, 20, 20, 5], "the lane's median, at most what was stated"


def test_recorded_prefixes_are_found_by_simulated_workers() -> None:
    shared = [*range(100, 104)]
    trace = load_trace(
        lines(
            *(
                request(5_000.0 * number, prompt_tokens=64 * 5 + 10, prefix=[*shared, 1_000 + number])
                for number in range(4)
            )
        )
    )
    sizes = Calibration()
    scenario = Scenario(
        rows=trace.demand(),
        overlay=SyntheticTenants(kv_tokens=sizes.kv_tokens),
        calibration=sizes,
        workers=2,
        seed=0,
    )

    total = scenario.run(1.0, lambda: None).total

    assert total.outcomes == {"finished": 4}
    assert 64 * 4 <= total.cached_tokens <= 3 * 64 * 4, "of the other two or three prompts, the first four blocks"


def test_bad_rows_are_named_with_their_columns_and_the_rest_is_read() -> None:
    bad = BadRows("skip")
    trace = load_trace(
        lines(
            request(1.0),
            request(-1.0),
            request(2.0, prompt_tokens=-3),
            request(3.0, lane="express"),
            request(1e308),
            {"tenant": "t-1", "limits": {"tokens_per_minute": -1}},
            request(4.0),
        ),
        bad=bad,
    )

    assert [row.row for row in trace.rows] == [2, 8]
    assert [line.split(":")[:2] for line in bad.named] == [
        ["row 3", " at_ms"],
        ["row 4", " prompt_tokens"],
        ["row 5", " lane"],
        ["row 6", " at_ms"],
        ["row 7", " limits[...]"],
    ]


def test_a_trace_that_fails_names_some_of_its_rows_and_counts_all() -> None:
    csv = ["arrival_s,prompt_tokens,output_tokens", "0,5,5", *["nan,5,5"] * 1_000]

    with pytest.raises(TraceError, match=r"^row 3: arrival_s .*; 999 more rows are wrong$") as raised:
        load_trace(csv)

    assert len(raised.value.named) == MAX_NAMED


def test_the_torn_last_line_of_a_killed_gateway_is_no_bad_row() -> None:
    torn = lines(request(1.0), request(2.0))
    torn[-1] = torn[-1][:40]

    assert [row.row for row in load_trace(torn).rows] == [2]
    with pytest.raises(TraceError, match=r"^row 3: "):
        load_trace([*torn[:-1], torn[-1] + "\n", json.dumps(request(3.0))])


class _Endless(io.RawIOBase):
    """A file whose second line is 64 MiB."""

    def __init__(self) -> None:
        self.most_asked = 0
        self._parts: Iterator[bytes] = iter(
            [b"arrival_s,prompt_tokens,output_tokens\n", *[b"1" * 2**20] * 64, b"\n0.5,5,5\n\xff,5,5\n1,5,5\n"]
        )

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        part = next(self._parts, b"")
        into[: len(part)] = part
        return len(part)


def test_a_line_without_end_is_not_held_and_the_next_ones_are_read() -> None:
    bad = BadRows("skip")
    longest = 0

    def watched() -> Iterator[str]:
        nonlocal longest
        for line in text_lines(io.BufferedReader(_Endless(), buffer_size=2**20)):
            longest = max(longest, len(line))
            yield line

    trace = load_trace(watched(), bad=bad)

    assert longest == MAX_LINE_BYTES + 1
    assert [(row.row, row.at_ms) for row in trace.rows] == [(3, 500.0), (5, 1_000.0)]
    assert bad.named == [f"row 2: the line is longer than {MAX_LINE_BYTES} bytes", "row 4: is not text"]


def test_the_shipped_recording_holds_what_its_load_asked_for() -> None:
    with (TRACES / "recorded-serve.trace").open("rb") as file:
        rows = load_trace(text_lines(file)).demand()

    assert (len(rows), sum(row.prompt_tokens for row in rows), sum(row.output_tokens for row in rows)) == (
        400, 34_509, 5_582,
    )  # fmt: skip
    assert {row.lane for row in rows} == {*LaneName}


def test_too_many_requests_are_refused() -> None:
    with pytest.raises(TraceError, match="more than 3 requests"):
        load_trace(lines(*(request(float(number)) for number in range(5))), most_rows=3)


def test_what_no_block_names_is_nobody_elses() -> None:
    trace = load_trace(lines(request(1.0, prompt_tokens=2_000, prefix=[7, 8])))
    (arrival,) = SyntheticTenants().arrivals(trace.demand())
    prompt = arrival.job().prompt

    assert prompt[:64] == (2,) * 64
    assert prompt[64:128] == (3,) * 64
    assert len(set(prompt[128:])) == 1
    assert 2 < prompt[128] < 2**31

"""Traces: both forms are read, slices and loads keep the requests, and bad rows are named."""

from pathlib import Path

import pytest

from fairlane.scheduler.simulation.trace import TraceError, TraceRow, load_trace, scale_load, slice_trace

HEADER = "arrival_s,prompt_tokens,output_tokens"
SHIPPED = Path(__file__).parents[3] / "benchmarks" / "scheduling" / "traces"


def csv_of(*rows: str) -> list[str]:
    return [f"{line}\n" for line in (HEADER, *rows)]


def test_rows_of_a_csv_trace() -> None:
    assert load_trace(csv_of("0.000,374,44", "4.315,396,109", "")).demand() == [
        TraceRow(2, 0.0, 374, 44),
        TraceRow(3, 4315.0, 396, 109),
    ]


def test_rows_of_a_mooncake_trace_keep_their_prefix_hashes() -> None:
    lines = [
        '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}\n',
        '{"timestamp": 3000, "input_length": 915, "output_length": 355, "hash_ids": [0, 7], "model": "other"}\n',
    ]

    assert load_trace(lines).demand() == [TraceRow(1, 0.0, 6758, 500, (0, 1, 2)), TraceRow(2, 3000.0, 915, 355, (0, 7))]


def test_requests_that_are_alike_are_all_of_them_requests() -> None:
    line = '{"timestamp": 9, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'

    assert len(load_trace(csv_of("1,5,5", "1,6,5", "1,5,5", "1,5,5")).demand()) == 4
    assert load_trace([line, line]).demand() == [TraceRow(1, 9.0, 600, 5, (0, 1)), TraceRow(2, 9.0, 600, 5, (0, 1))]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["1,5"], "row 2: 3 columns are expected, not 2"),
        (["1,5,5,5"], "row 2: 3 columns are expected, not 4"),
        (["1,5,5", "nan,5,5"], "row 3: arrival_s must be a finite number of at least 0, not 'nan'"),
        (["inf,5,5"], "row 2: arrival_s"),
        (["-1,5,5"], "row 2: arrival_s"),
        (["1e300,5,5"], "row 2: arrival_s"),
        (["noon,5,5"], "row 2: arrival_s"),
        (["1,0,5"], "row 2: prompt_tokens must be a whole number from 1 to 100000000, not '0'"),
        (["1,-5,5"], "row 2: prompt_tokens"),
        (["1,5.0,5"], "row 2: prompt_tokens"),
        (["1,5,"], "row 2: output_tokens"),
        (["1,5,٣"], "row 2: output_tokens"),
        (["1,5,1" + "0" * 5000], "row 2: output_tokens"),
        (["1,5,nan"], "row 2: output_tokens"),
        (["2,5,5", "", "1,5,5"], "row 4: arrives before row 2; a trace is sorted by arrival"),
        (["1,90,10", "1,91,10"], "row 3: needs 101 KV tokens, and the pool holds 100"),
        ([], "the trace holds no requests"),
    ],
)
def test_a_bad_row_is_named(rows: list[str], words: str) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace(csv_of(*rows), kv_tokens=100).demand()

    assert str(raised.value).startswith(words)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"timestamp": 0, "input_length": 5}', "output_length"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 5}', "timestamp"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', "row 1"),
        ('{"timestamp": 1e999, "input_length": 5, "output_length": 5}', "row 1"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5}', "input_length"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1.5}', "output_length"),
        ('{"timestamp": 0, "input_length": true, "output_length": 5}', "input_length"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [-1]}', "hash_ids"),
        ('{"timestamp": 0', "row 1"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5, "\ud800": 1}', "row 1"),
    ],
)
def test_a_bad_line_of_json_is_named(line: str, words: str) -> None:
    with pytest.raises(TraceError, match=r"^row 1: ") as raised:
        load_trace([line]).demand()

    assert words in str(raised.value)


@pytest.mark.parametrize("lines", [[], ["", "\n"]])
def test_an_empty_trace_is_refused(lines: list[str]) -> None:
    with pytest.raises(TraceError, match="empty"):
        load_trace(lines).demand()


@pytest.mark.parametrize("header", ["arrival,prompt,output", "TIMESTAMP,ContextTokens,GeneratedTokens", "0.0,1,1"])
def test_other_columns_are_refused(header: str) -> None:
    with pytest.raises(TraceError, match=f"row 1: the columns must be {HEADER}"):
        load_trace([header, "1,5,5"]).demand()


def test_a_slice_begins_at_nought_and_ends_before_its_end() -> None:
    rows = load_trace(csv_of("0,1,1", "10,2,2", "15.5,3,3", "20,4,4")).demand()

    assert [(row.at_ms, row.prompt_tokens) for row in slice_trace(rows, 10, 10)] == [(0.0, 2), (5500.0, 3)]
    with pytest.raises(TraceError, match="no request arrives in the 5 s from 30 s on"):
        slice_trace(rows, 30, 5)


def test_load_is_scaled_by_time_alone() -> None:
    rows = load_trace(csv_of("0,1,1", "10,2,2")).demand()

    assert [(row.row, row.at_ms, row.output_tokens) for row in scale_load(rows, 4.0)] == [(2, 0.0, 1), (3, 2500.0, 2)]


@pytest.mark.parametrize("name", ["azure-2023-code", "azure-2023-conversation"])
def test_the_shipped_traces_are_ten_minutes_of_valid_requests(name: str) -> None:
    with (SHIPPED / f"{name}.csv").open() as file:
        rows = load_trace(file).demand()

    assert len(rows) > 1_000
    assert rows[0].at_ms < 10_000.0
    assert 590_000.0 < rows[-1].at_ms < 600_000.0

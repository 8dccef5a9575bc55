"""What the console's scripts make of what the admin API tells, in a browser."""

from typing import Any

import pytest

from tests.gateway.console.conftest import ScriptPage

pytestmark = pytest.mark.slow

STATES = ["free", "running", "waiting", "clean", "cached", "swapped", "copy"]
SUMS = """async ({ map, mode }) => {
  const { grouped, inUse, labelOf } = await import("/console/parts/kv_sums.js");
  const host = { ...map, blocks: map.host_blocks, runs: map.host_runs };
  const rows = [...grouped(map, "device"), ...grouped(host, "host")];
  const legend = {};
  for (const row of rows) legend[labelOf(row, mode)] = (legend[labelOf(row, mode)] ?? 0) + row.blocks;
  return { text: inUse(map, rows), legend };
}"""
REQUEST = """async (id) => {
  const { request } = await import("/console/views/request.js");
  await request(document.body, { id, signal: new AbortController().signal });
}"""


def told(scripts: ScriptPage, blocks: dict[str, int], host: dict[str, int], mode: str = "state") -> Any:
    """Header and legend of a worker's pools, from how many blocks each state has."""
    runs, host_runs = (
        [[many, -1 if state in ("free", "cached") else 0, -1, STATES.index(state)] for state, many in pool.items()]
        for pool in (blocks, host)
    )
    block_map = {
        "blocks": sum(blocks.values()),
        "block_size": 16,
        "host_blocks": sum(host.values()),
        "runs": runs,
        "host_runs": host_runs,
        "tenants": ["acme"],
        "lanes": [],
        "states": STATES,
    }
    return scripts.page.evaluate(SUMS, {"map": block_map, "mode": mode})


def test_prefixes_that_are_kept_for_nobody_are_not_in_use(scripts: ScriptPage) -> None:
    text = told(scripts, {"cached": 60, "free": 8}, {"free": 32})["text"]

    assert text == "0 of 68 blocks in use (0 %), 60 cached, 16 tokens each"


def test_whatever_a_sequence_holds_is_in_use_also_where_it_waits(scripts: ScriptPage) -> None:
    text = told(scripts, {"running": 4, "waiting": 2, "clean": 3, "free": 1}, {"swapped": 5})["text"]

    assert text == "9 of 10 blocks in use (90 %), 16 tokens each"


@pytest.mark.parametrize("mode", ["tenant", "lane", "state"])
def test_room_in_host_memory_is_told_apart_from_that_of_the_pool(scripts: ScriptPage, mode: str) -> None:
    legend = told(scripts, {"running": 4, "free": 8}, {"copy": 2, "free": 30}, mode)["legend"]

    assert (legend["free"], legend["free in host memory"]) == (8, 30)


def test_what_copies_cost_is_no_guess_at_how_long_a_request_stays_away(scripts: ScriptPage) -> None:
    yielded = {"at_ms": 5, "mode": "swap", "blocks": 3, "bytes": 12_288, "predicted_ms": 4, "stall_ms": 8_000}
    ended = {"outcome": "finished", "total_ms": 9_000, "preempted": 1, "preemptions": [yielded]}
    scripts.answers["/admin/v1/requests/one"] = {"id": "one", "tenant": "acme", "lane": "throughput", **ended}

    scripts.page.evaluate(REQUEST, "one")

    shown = scripts.page.get_by_role("table", name="Preemptions")
    head, row = (dict(enumerate(line.split("\t"))) for line in shown.inner_text().splitlines()[-2:])
    assert {head[place]: row[place] for place in (6, 7)} == {"Copies, foreseen": "4 ms", "Away": "8 s"}

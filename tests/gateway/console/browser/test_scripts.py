"""What the console's scripts make of what the admin API tells, in a browser."""

from typing import Any

import pytest

from fairlane.quotas.tenants import Tenant
from tests.gateway.console.browser.conftest import ScriptPage
from tests.support.system.browser import CROWDED

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

VIEW = """async (name) => {
  const view = await import(`/console/views/${name}.js`);
  const context = { signal: new AbortController().signal, fields: new URLSearchParams() };
  void view[name](document.getElementById("main"), context);
}"""
TIME = {
    "total_ms": 3_000.0,
    "queue_ms": 1_500.0,
    "prefill_ms": 250.0,
    "decode_ms": 900.0,
    "preempted_ms": 300.0,
    "paused_ms": 0.0,
    "network_ms": 50.0,
}
WORKER: dict[str, Any] = {
    "id": "w1",
    "model": "tiny",
    "draining": False,
    "started_at": 1_700_000_000,
    "blocks_total": 100,
    "blocks_free": 50,
    "block_size": 16,
    "host_slots_total": 0,
    "host_slots_free": 0,
    "max_sequences": 8,
    "running": {"latency": 1, "throughput": 2},
    "waiting": {},
    "preempted": {"throughput": 1},
    "tokens_per_s": {},
    "step_ms": 20.0,
    "single_stream_ms": None,
    "prefill_tokens_per_s": None,
    "costs": {"base_ms": 10.0, "prefill": [[1, 12.6], [1024, 15_300.0]], "decode": [[1, 14.0], [8, 53.0]]},
}


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


def drain(scripts: ScriptPage, *workers: dict[str, Any]) -> Any:
    """Press *Drain* at the first worker; returns the dialog that this opens."""
    scripts.answers["/admin/v1/workers"] = {"data": workers, "has_more": False, "last_id": None}
    scripts.answers["/admin/v1/workers/w1/drain"] = {}
    scripts.show(VIEW, "workers")
    scripts.page.get_by_role("button", name="Drain").first.click()
    dialog = scripts.page.get_by_role("dialog")
    dialog.wait_for()
    return dialog


def test_draining_the_last_worker_of_a_model_asks_and_says_what_follows(scripts: ScriptPage) -> None:
    others = [{**WORKER, "id": "w2", "draining": True}, {**WORKER, "id": "w3", "model": "other"}]
    dialog = drain(scripts, WORKER, *others)

    text = dialog.inner_text()
    for consequence in ("the last worker that serves tiny", "4 running requests", "503 no_worker"):
        assert consequence in text
    assert scripts.changes == []

    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert scripts.changes == []


def test_draining_one_of_several_workers_names_the_others_and_goes_on_when_confirmed(scripts: ScriptPage) -> None:
    dialog = drain(scripts, WORKER, {**WORKER, "id": "w2"})

    assert "1 other worker still serves tiny" in dialog.inner_text()
    assert "503" not in dialog.inner_text()

    dialog.get_by_role("button", name="Drain").click()
    scripts.page.get_by_text("w1 takes no more jobs.").first.wait_for()
    assert scripts.changes == [("POST", "/admin/v1/workers/w1/drain")]


def test_no_words_of_a_worker_run_together(scripts: ScriptPage) -> None:
    scripts.answers["/admin/v1/workers"] = {"data": [WORKER], "has_more": False, "last_id": None}
    scripts.show(VIEW, "workers")

    scripts.page.get_by_text("up to 15.3 s").wait_for()

    assert scripts.page.evaluate(CROWDED) == []


def test_a_new_tenant_form_opens_with_the_defaults_of_the_api(scripts: ScriptPage) -> None:
    chosen = scripts.page.evaluate("""async () => {
      const { tenantBody, tenantFields } = await import("/console/parts/tenant_form.js");
      return tenantBody(Object.fromEntries(tenantFields().map((each) => [each.name, each.read()])), true);
    }""")

    default = Tenant(id="new", root="new")
    stated = {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}
    assert stated == {
        "weight": default.weight,
        "lanes": list(default.lanes),
        "default_lane": default.default_lane,
        "reserve": default.reserve,
        "preemption": default.preemption,
        "self_service": default.self_service,
    }


def test_the_playground_says_of_a_refused_request_only_that_it_was_refused(scripts: ScriptPage) -> None:
    refusal = {"error": {"code": "rate_limit_exceeded", "message": "Too many requests."}}
    scripts.answers["/v1/models"] = {"data": [{"id": "tiny"}]}
    scripts.answers["/v1/chat/completions"] = (429, refusal)
    scripts.show(VIEW, "playground")
    scripts.page.get_by_label("Tenant key").fill("fl-key")
    scripts.page.get_by_role("button", name="Send on both lanes").click()

    panes = scripts.page.locator("section.pane")
    for place in range(2):
        pane = panes.nth(place)
        pane.get_by_text("429 rate_limit_exceeded").wait_for()
        assert pane.locator(".stream-state").inner_text() == "refused"
        assert pane.locator(".figures-line").inner_text().startswith("no token")


def test_a_request_s_time_is_shown_as_the_account_of_the_api(scripts: ScriptPage) -> None:
    yielded = {"at_ms": 2_000, "mode": "swap", "blocks": 3, "bytes": 12_288, "predicted_ms": 4, "stall_ms": 300}
    found = {"outcome": "finished", "total_ms": 3_000, "queue_ms": 1_500, "ttft_ms": 1_750, "preemptions": [yielded]}
    scripts.answers["/admin/v1/requests/one"] = {
        "id": "one",
        "tenant": "acme",
        "lane": "latency",
        "time": TIME,
        **found,
    }
    scripts.show(REQUEST, "one")

    rows = scripts.page.locator(".waterfall .water-row")
    shown = [rows.nth(place).inner_text().split("\n") for place in range(rows.count() - 1)]
    assert [[row[0], row[-1]] for row in shown] == [
        ["Queue", "1.5 s"],
        ["Prefill", "250 ms"],
        ["Decode", "900 ms"],
        ["Preempted", "300 ms"],
        ["Network", "50 ms"],
        ["Total", "3 s"],
    ]

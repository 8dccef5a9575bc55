"""Traces and simulations through the admin API: uploads, lists, parts of a file, figures, and what is refused."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.insight.request_traces import simulator
from fairlane.gateway.insight.request_traces.simulate_process import SimulationTask
from fairlane.gateway.insight.request_traces.simulator import Simulator
from fairlane.scheduler.simulation.calibration import Calibration
from tests.support.gateway.admin_app import AdminBench, worker

pytestmark = pytest.mark.anyio

CSV = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{0.5 * n:g},{20 + n % 9},{3 + n % 5}\n" for n in range(40))


async def upload(bench: AdminBench, content: str = CSV) -> str:
    made = await bench.done("POST", "/traces", files={"file": ("../../etc/passwd", content.encode())})
    name = made["name"]
    assert isinstance(name, str)
    return name


def recorded(bench: AdminBench, content: str) -> Path:
    path = bench.traces.new("recorded")
    path.write_text(content)
    return path


async def test_an_uploaded_trace_is_listed_and_read_from_an_offset(bench: AdminBench) -> None:
    name = await upload(bench)

    (listed,) = (await bench.done("GET", "/traces"))["data"]
    rest = await bench.call("GET", f"/traces/{name}?offset=10")
    beyond = await bench.call("GET", f"/traces/{name}?offset={2**53}")

    assert (listed["name"], listed["kind"], listed["bytes"]) == (name, "uploaded", len(CSV))
    assert rest.text == CSV[10:]
    assert (beyond.status_code, beyond.content) == (200, b"")
    assert [(each["action"], each["target"]) for each in await bench.audit()] == [
        ("trace.upload", name),
        ("trace.read", name),
    ]


async def test_traces_come_in_pages_and_the_oldest_uploads_go(bench: AdminBench) -> None:
    names = [await upload(bench) for _ in range(9)]
    recorded(bench, CSV)

    first = await bench.done("GET", "/traces?limit=4")
    rest = await bench.done("GET", f"/traces?limit=100&after={first['last_id']}")

    found = [each["name"] for each in (*first["data"], *rest["data"])]
    assert len(found) == len(set(found)) == 9
    assert len(set(names) & set(found)) == 8


async def test_a_simulation_answers_figures_and_plots(bench: AdminBench) -> None:
    name = await upload(bench)

    answer = await bench.done("POST", "/simulations", json={"trace": name, "loads": [1.0, 4.0], "workers": 2})

    assert (answer["requests"], answer["played"], answer["workers"], answer["hardware"]) == (40, 40, 2, "fleet")
    assert [run["load"] for run in answer["runs"]] == answer["output"]["loads"] == [1.0, 4.0]
    for run in answer["runs"]:
        assert sum(lane["requests"] for lane in run["lanes"]) == 40
        assert {lane["lane"] for lane in run["lanes"]} == {"latency", "throughput"}
        assert all(lane["ttft_ms"]["p50"] > 0 for lane in run["lanes"])
        assert len(run["plots"]["latency"][0]["ttft_ms"]) == len(run["plots"]["percentiles"])
        assert run["plots"]["service"][0]["values"][-1] == run["tenants"][0]["service"]


async def test_a_simulation_and_each_reader_of_a_trace_are_in_the_audit_log(bench: AdminBench) -> None:
    path = recorded(bench, CSV)
    made = await bench.done("POST", "/tokens", json={"name": "ada", "role": "operator"})
    ada = {"authorization": f"Bearer {made['token']}"}

    await bench.done("POST", "/simulations", json={"trace": path.name, "workers": 2, "hardware": "l4-8b"})
    for offset in range(5):  # as one who follows a recording
        await bench.call("GET", f"/traces/{path.name}?offset={offset}")
        await bench.http.get(f"/admin/v1/traces/{path.name}?offset={offset}", headers=ada)

    _, simulated, *reads = await bench.audit()
    assert (simulated["action"], simulated["target"]) == ("simulation.run", path.name)
    assert simulated["changes"]["after"]["workers"] == 2
    assert [(each["action"], each["target"], each["actor"]) for each in reads] == [
        ("trace.read", path.name, "admin"),
        ("trace.read", path.name, f"token:{made['id']}:ada"),
    ]


async def test_a_recorded_trace_keeps_its_tenants(bench: AdminBench) -> None:
    rows = [
        {
            "at_ms": 1e12 + 100 * n,
            "tenant": f"t-{n % 2}",
            "lane": "latency",
            "prompt_tokens": 20,
            "output_tokens": 4,
        }
        for n in range(10)
    ]
    path = recorded(bench, "".join(json.dumps(row) + "\n" for row in ({"fairlane_trace": 1}, *rows)))

    answer = await bench.done("POST", "/simulations", json={"trace": path.name, "hardware": "l4-8b"})

    assert {tenant["tenant"] for tenant in answer["runs"][0]["tenants"]} == {"t-0", "t-1"}
    assert [lane["lane"] for lane in answer["runs"][0]["lanes"]] == ["latency"]


async def test_bad_rows_are_named_or_refuse_the_trace(bench: AdminBench) -> None:
    name = await upload(bench, CSV + "nan,5,5\n99,5,5\n")

    answer = await bench.done("POST", "/simulations", json={"trace": name})
    refused = await bench.call("POST", "/simulations", json={"trace": name, "bad_rows": "fail"})

    assert (answer["requests"], answer["bad_rows"]) == (41, 1)
    assert answer["bad_rows_named"][0].startswith("row 42: arrival_s")
    assert refused.status_code == 400
    assert "row 42: arrival_s" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"trace": "x", "workers": 0}, "workers"),
        ({"trace": "x", "loads": []}, "loads"),
        ({"trace": "x", "loads": [1e308]}, "loads.[0]"),
        ({"trace": "x", "loads": [1.0] * 6}, "loads"),
        ({"trace": "x", "duration_s": -1.0}, "duration_s"),
        ({}, "trace"),
    ],
)
async def test_a_simulation_out_of_range_is_refused(bench: AdminBench, body: dict[str, object], param: str) -> None:
    assert await bench.refused("POST", "/simulations", json=body) == (400, "invalid_request_error", param)


@pytest.mark.parametrize("name", ["nowhere", "../../../etc/passwd", "recorded-20270115T080000123456-5f0c2a91.trace"])
async def test_a_trace_that_is_not_there_is_404(bench: AdminBench, name: str) -> None:
    assert await bench.refused("POST", "/simulations", json={"trace": name}) == (404, "not_found", None)


async def test_hardware_must_be_known_or_measured(bench: AdminBench) -> None:
    name = await upload(bench)
    bench.fleet.statuses = [worker(step_weights=())]

    unknown = await bench.refused("POST", "/simulations", json={"trace": name, "hardware": "abacus"})
    unmeasured = await bench.refused("POST", "/simulations", json={"trace": name})

    assert unknown == unmeasured == (400, "invalid_request_error", "hardware")


async def test_what_is_no_form_with_a_file_leaves_nothing(bench: AdminBench) -> None:
    assert (await bench.refused("POST", "/traces", json={}))[0] == 400
    assert await bench.refused("POST", "/traces", files={"other": ("x", b"y")}) == (
        400,
        "invalid_request_error",
        "file",
    )
    assert bench.traces.listed() == []


async def test_a_disk_that_takes_nothing_is_told(bench: AdminBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bench.traces.__class__, "new", full)

    assert await bench.refused("POST", "/traces", files={"file": ("x", b"y")}) == (503, "unavailable", None)


async def test_what_a_killed_gateway_left_of_an_upload_goes(bench: AdminBench) -> None:
    left = bench.traces.new("uploaded").with_suffix(".part")
    left.write_text("half")
    os.utime(left, (0, 0))

    await upload(bench)

    assert not left.exists()


async def test_a_second_simulation_is_told_to_wait(bench: AdminBench) -> None:
    name = await upload(bench)

    answers = await asyncio.gather(
        *(bench.call("POST", "/simulations", json={"trace": name, "hardware": "h100-8b"}) for _ in range(3))
    )

    assert sorted(answer.status_code for answer in answers) == [200, 429, 429]
    refused = next(answer for answer in answers if answer.is_error)
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 10


async def test_a_simulation_without_end_is_cut_off(bench: AdminBench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(bench, CSV)
    task = SimulationTask(
        name=path.name,
        path=str(path),
        loads=(1.0,),
        workers=1,
        hardware="fleet",
        calibration=Calibration(),
        tenants=1,
        zipf=1.0,
        latency_share=0.5,
        seed=0,
        bad_rows="skip",
    )

    with monkeypatch.context() as patch:
        patch.setattr(simulator, "WALL_S", 0.001)
        with pytest.raises(ApiError) as refused:
            await Simulator().run(task)

    assert (refused.value.code, refused.value.param) == ("request_exceeds_limit", "trace")
    assert (await Simulator().run(task))["played"] == 40, "and the next one has its turn"

"""Usage from the ledger, and the audit log, through the admin API."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest

from fairlane.quotas import audit
from fairlane.store.errors import StoreUnavailable
from tests.support.gateway.admin_app import AdminBench
from tests.support.quotas.auditing import failing

pytestmark = pytest.mark.anyio

FIGURES = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "cost", "gpu_seconds", "kv_block_seconds")


@pytest.fixture(autouse=True)
async def acme(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    await bench.spend("acme", prompt=10, output=5)
    await bench.spend("acme", prompt=20, output=7)
    await bench.spend("acme", lane="throughput", prompt=100, output=50)


async def test_usage_adds_up_what_was_settled(bench: AdminBench) -> None:
    report = await bench.done("GET", "/tenants/acme/usage")

    assert report["total"] == dict.fromkeys(FIGURES, 0) | {"requests": 3, "prompt_tokens": 130, "output_tokens": 62}
    assert report["data"] == [report["total"]]


async def test_usage_is_grouped_by_any_of_its_words(bench: AdminBench) -> None:
    report = await bench.done("GET", "/tenants/acme/usage?group_by=lane,model,key,day")

    assert [(line["lane"], line["requests"]) for line in report["data"]] == [("latency", 2), ("throughput", 1)]
    assert {line["model"] for line in report["data"]} == {"tiny"}
    for figure in FIGURES:
        assert sum(line[figure] for line in report["data"]) == report["total"][figure]


async def test_days_outside_the_span_do_not_count(bench: AdminBench) -> None:
    today = datetime.now(UTC).date()
    earlier = f"from={today - timedelta(days=9)}&to={today - timedelta(days=2)}"

    report = await bench.done("GET", f"/tenants/acme/usage?{earlier}")

    assert report["total"]["requests"] == 0
    assert report["data"] == []


async def test_a_report_may_end_in_the_first_days_there_are(bench: AdminBench) -> None:
    for last in ("0001-01-01", "0001-01-15", "0001-02-01"):
        assert (await bench.done("GET", f"/tenants/acme/usage?to={last}"))["total"]["requests"] == 0


@pytest.mark.parametrize("form", ["{0:%Y-%m-%d}", "{0:%Y-%m-%dT%H:%M:%SZ}", "{1:.0f}", "{1}"])
async def test_a_moment_may_be_written_in_any_usual_way(bench: AdminBench, form: str) -> None:
    now = datetime.now(UTC)
    moment = form.format(now, now.timestamp())

    report = await bench.done("GET", "/tenants/acme/usage", params={"from": moment, "to": moment})

    assert report["total"]["requests"] == 3


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("from=yesterday", "from"),
        ("from=2026-02-30", "from"),
        ("to=2026-01-01T00:00:00", "to"),
        ("to=1e99", "to"),
        ("from=-5", "from"),
        ("from=2026-01-02&to=2026-01-01", "to"),
        ("from=2020-01-01&to=2026-01-01", "to"),
        ("group_by=color", "group_by"),
        ("group_by=lane,lane", "group_by"),
        ("group_by=lane,", "group_by"),
        ("since=2026-01-01", "since"),
    ],
)
async def test_a_wrong_question_names_its_field(bench: AdminBench, query: str, param: str) -> None:
    assert await bench.refused("GET", f"/tenants/acme/usage?{query}") == (400, "invalid_request_error", param)


async def test_the_ledger_of_a_deleted_tenant_stays(bench: AdminBench) -> None:
    await bench.done("DELETE", "/tenants/acme")

    assert (await bench.done("GET", "/tenants/acme/usage"))["total"]["requests"] == 3
    assert await bench.refused("GET", "/tenants/nobody/usage") == (404, "not_found", None)


async def test_the_audit_log_says_who_what_when_and_how_it_was(bench: AdminBench) -> None:
    await bench.done("PATCH", "/tenants/acme", json={"weight": 3, "name": "Acme"})

    newest = (await bench.done("GET", "/audit?limit=1"))["data"][0]

    assert (newest["actor"], newest["address"]) == ("admin", "127.0.0.1")
    assert newest["action"] == "tenant.update"
    assert newest["target"] == "acme"
    assert newest["changes"] == {"before": {"weight": 1.0, "name": ""}, "after": {"weight": 3.0, "name": "Acme"}}
    assert abs(newest["at"] - datetime.now(UTC).timestamp()) < 60


async def test_what_is_too_long_for_the_audit_log_is_left_out_by_itself(bench: AdminBench) -> None:
    await bench.done("PATCH", "/tenants/acme", json={"name": "Acme", "models": [f"{n:0199}" for n in range(60)]})

    newest = (await bench.done("GET", "/audit?limit=1"))["data"][0]

    assert newest["changes"]["before"] == {"name": "", "models": None}
    assert newest["changes"]["after"]["name"] == "Acme"
    assert newest["changes"]["after"]["models"].keys() == {"left_out"}


async def test_the_audit_log_comes_in_pages_newest_first(bench: AdminBench) -> None:
    for weight in (2, 3):
        await bench.done("PATCH", "/tenants/acme", json={"weight": weight})

    first = await bench.done("GET", "/audit?limit=2")
    rest = await bench.done("GET", f"/audit?limit=2&after={first['last_id']}")

    weights = [entry["changes"]["after"]["weight"] for entry in [*first["data"], *rest["data"]]]
    assert weights == [3.0, 2.0, 1.0]
    assert (first["has_more"], rest["has_more"]) == (True, False)


@pytest.fixture
async def changed(bench: AdminBench) -> AdminBench:
    """Changes of two tenants and a key."""
    await bench.done("POST", "/tenants", json={"id": "acme-2"})
    await bench.done("POST", "/tenants/acme/keys", json={"name": "web"})
    await bench.done("PATCH", "/tenants/acme", json={"weight": 2})
    return bench


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ("target=acme", ["tenant.update", "key.create", "tenant.create"]),
        ("target=acme-2", ["tenant.create"]),
        ("action=tenant", ["tenant.update", "tenant.create", "tenant.create"]),
        ("action=tenant.update", ["tenant.update"]),
        ("action=ten", []),
        ("actor=ADMIN&action=key", ["key.create"]),
        ("actor=nobody", []),
        ("to=2001-01-01", []),
        ("from=2001-01-01&to=2999-01-01&action=key", ["key.create"]),
    ],
)
async def test_the_audit_log_is_filtered(changed: AdminBench, query: str, actions: list[str]) -> None:
    found = await changed.done("GET", f"/audit?{query}")

    assert [entry["action"] for entry in found["data"]] == actions
    assert found["has_more"] is False


async def test_a_search_of_the_audit_log_goes_on_where_it_stopped(
    changed: AdminBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PART", 1)
    monkeypatch.setattr(audit, "SEARCHED", 2)

    first = await changed.done("GET", "/audit?action=tenant.create")
    second = await changed.done("GET", f"/audit?action=tenant.create&after={first['last_id']}")
    third = await changed.done("GET", f"/audit?action=tenant.create&after={second['last_id']}")

    assert [[entry["target"] for entry in one["data"]] for one in (first, second, third)] == [
        [],
        ["acme-2", "acme"],
        [],
    ]
    assert [one["has_more"] for one in (first, second, third)] == [True, True, False]


@pytest.mark.parametrize("query", ["from=soon", "to=1e400", "format=xml", "action=" + "x" * 5_000])
async def test_other_filters_of_the_audit_log_are_refused(bench: AdminBench, query: str) -> None:
    status, _, param = await bench.refused("GET", f"/audit?{query}")

    assert (status, param) == (400, query.partition("=")[0])


async def test_the_audit_log_is_exported_as_it_is_filtered(changed: AdminBench) -> None:
    table = await changed.call("GET", "/audit?format=csv&target=acme")
    lines = await changed.call("GET", "/audit?format=jsonl&target=acme")

    header, newest, *_ = csv.reader(io.StringIO(table.text))
    assert header == ["id", "at", "actor", "address", "action", "target", "changes"]
    assert (newest[2], newest[4], newest[5]) == ("admin", "tenant.update", "acme")
    assert json.loads(newest[6])["after"] == {"weight": 2.0}
    assert newest[1].endswith("+00:00")
    entries = [json.loads(line) for line in lines.text.splitlines()]
    assert entries == (await changed.done("GET", "/audit?target=acme"))["data"]
    assert table.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    assert (table.headers["content-type"].partition(";")[0], lines.headers["content-type"]) == (
        "text/csv",
        "application/jsonl",
    )


async def test_a_change_that_the_log_does_not_take_yet_is_made_and_told_later_once(
    bench: AdminBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, StoreUnavailable("away"), only="audit_write")
        await bench.done("PATCH", "/tenants/acme", json={"name": "a name"})
    missing = [entry["action"] for entry in await bench.audit()]

    for _ in range(2):
        await bench.budgets.expired(10)

    assert missing == ["tenant.create"]
    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create", "tenant.update"]
    newest = (await bench.done("GET", "/audit?limit=1"))["data"][0]
    assert newest["changes"] == {"before": {"name": ""}, "after": {"name": "a name"}}
    assert newest["address"] == "127.0.0.1"


async def test_what_was_before_each_of_many_changes_at_once_is_what_the_one_before_made(bench: AdminBench) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            change = partial(bench.done, "PATCH", "/tenants/acme/quota", json={"tokens_per_day": number})
            tasks.start_soon(change)

    changes = [entry["changes"] for entry in (await bench.audit())[1:]]
    assert len(changes) == 8
    assert changes[0]["before"] == {"limits": {}}
    assert [each["before"] for each in changes[1:]] == [each["after"] for each in changes[:-1]]


async def test_what_happens_to_one_key_at_once_is_told_as_it_was(bench: AdminBench) -> None:
    made = await bench.done("POST", "/tenants/acme/keys", json={"name": "k"})
    path = f"/tenants/acme/keys/{made['id']}"

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(partial(bench.call, "DELETE", path))
            tasks.start_soon(partial(bench.call, "POST", f"{path}/rotate", json={"overlap_s": 60}))

    told = [entry for entry in await bench.audit() if entry["target"] == f"acme/{made['id']}"]
    keys = (await bench.done("GET", "/tenants/acme/keys"))["data"]
    rotated = [entry["changes"] for entry in told if entry["action"] == "key.rotate"]
    assert [entry["action"] for entry in told].count("key.revoke") == 1
    assert told[-1]["action"] == "key.revoke"
    assert {each["after"]["replaced_by"]["id"] for each in rotated} == {key["id"] for key in keys} - {made["id"]}
    assert {each["before"]["state"] for each in rotated} <= {"active"}


async def test_nothing_is_older_than_the_beginning_of_time(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "first"})

    assert (await bench.done("GET", "/audit?after=00-0"))["data"] == []


@pytest.mark.parametrize("after", ["x", "(1-1", "1-1-1", "-", "+", "9" * 40 + "-1"])
async def test_a_wrong_place_in_the_audit_log_is_named(bench: AdminBench, after: str) -> None:
    refused = await bench.refused("GET", "/audit", params={"after": after})

    assert refused == (400, "invalid_request_error", "after")


async def test_reading_is_never_noted(bench: AdminBench) -> None:
    for path in ("/tenants", "/tenants/acme", "/tenants/acme/quota", "/tenants/acme/keys", "/lanes", "/workers"):
        await bench.done("GET", path)
    sizes = {"prompt_tokens": 1, "max_output_tokens": 1, "lane": "latency"}
    await bench.done("POST", "/tenants/acme/explain", json=sizes)

    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create"]

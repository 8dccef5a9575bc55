"""The ledger as a file, through the admin API and from the command line."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlane.quotas import ledger
from tests.support.gateway.admin_app import AdminBench

pytestmark = pytest.mark.anyio

PATH = "/tenants/acme/ledger"


@pytest.fixture(autouse=True)
async def acme(bench: AdminBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_PAGE", 3)
    await bench.done("POST", "/tenants", json={"id": "acme"})
    for number in range(10):
        await bench.spend("acme", prompt=number, output=number + 1)


async def lines(bench: AdminBench, **query: str) -> list[dict[str, Any]]:
    answer = await bench.call("GET", PATH, params=query)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_each_line_is_one_request_oldest_first(bench: AdminBench) -> None:
    found = await lines(bench)

    assert [(line["prompt_tokens"], line["output_tokens"]) for line in found] == [(n, n + 1) for n in range(10)]
    assert {(line["tenant"], line["model"], line["lane"], line["outcome"]) for line in found} == {
        ("acme", "tiny", "latency", "finished")
    }
    assert all(abs(line["at"] - datetime.now(UTC).timestamp()) < 60 for line in found)
    total = (await bench.done("GET", "/tenants/acme/usage"))["total"]
    assert sum(line["output_tokens"] for line in found) == total["output_tokens"]


async def test_csv_has_the_same_fields_under_their_names(bench: AdminBench) -> None:
    answer = await bench.call("GET", f"{PATH}?format=csv")

    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert rows == [{name: str(value) for name, value in line.items()} for line in await lines(bench)]
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="ledger-acme.csv"'
    assert answer.headers["cache-control"] == "no-store"


async def test_a_span_includes_both_its_ends(bench: AdminBench) -> None:
    found = await lines(bench)
    today = datetime.now(UTC).date()
    third = str(int(found[2]["id"].split("-")[0]) / 1e3)

    assert await lines(bench, **{"from": str(today - timedelta(days=1)), "to": str(today + timedelta(days=1))}) == found
    assert (await lines(bench, **{"from": third}))[-8:] == found[2:]
    assert (await lines(bench, to=third))[:3] == found[:3]
    assert await lines(bench, to=str(today - timedelta(days=1))) == []


async def test_an_empty_csv_has_its_names(bench: AdminBench) -> None:
    answer = await bench.call("GET", f"{PATH}?format=csv&to=2020-01-01")

    assert answer.text.splitlines() == [answer.text.strip()]
    assert answer.text.startswith("id,at,tenant,")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("format=xml", "format"),
        ("from=yesterday", "from"),
        ("from=1002-12-31T23:39Z", "from"),
        ("to=2026-02-30", "to"),
        ("to=9999-12-31", None),
        ("from=2026-01-02&to=2026-01-01", "to"),
        ("from=9999-12-31", "to"),
        ("limit=5", "limit"),
    ],
)
async def test_a_wrong_question_names_its_field(bench: AdminBench, query: str, param: str | None) -> None:
    answer = await bench.call("GET", f"{PATH}?{query}")

    assert answer.status_code in (200, 400), answer.text
    assert param is None or answer.json()["error"]["param"] == param


async def test_the_ledger_of_a_deleted_tenant_is_exported_and_nobodys_is_404(bench: AdminBench) -> None:
    await bench.done("DELETE", "/tenants/acme")

    assert len(await lines(bench)) == 10
    assert await bench.refused("GET", "/tenants/nobody/ledger") == (404, "not_found", None)

"""The price list and chargeback through the admin API."""

import csv
import io
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.quotas.limits import FREE, Prices
from fairlane.quotas.prices import LARGEST_PRICE, MOST_ROWS, PriceList, PriceStore
from tests.support.gateway.admin_app import HEADERS, AdminBench

pytestmark = pytest.mark.anyio

ROW = {"model": "tiny", "lane": "latency", "input": 150, "cached_input": 75, "output": 600}
ANY = {"input": 100, "output": 400}


async def put(bench: AdminBench, *rows: dict[str, Any]) -> Any:
    return await bench.done("PUT", "/prices", json={"prices": list(rows)})


async def test_a_list_is_stored_whole_and_shown_with_its_defaults(bench: AdminBench) -> None:
    empty = await bench.done("GET", "/prices")
    stored = await put(bench, ROW, ANY)

    assert empty == {"currency": "EUR", "prices": [], "version": 0}
    assert stored["prices"] == [ROW, {"model": "*", "lane": "*", "input": 100, "cached_input": 100, "output": 400}]
    assert await bench.done("GET", "/prices") == stored
    assert stored["version"] == 1


async def test_the_log_tells_what_was_and_what_is_and_an_equal_list_is_no_change(bench: AdminBench) -> None:
    await put(bench, ROW)
    again = await put(bench, ROW)
    await put(bench)

    entries = await bench.audit()
    assert again["version"] == 1
    assert [entry["action"] for entry in entries] == ["prices.replace", "prices.replace"]
    assert entries[0]["changes"] == {"before": {"prices": []}, "after": {"prices": [ROW]}}
    assert entries[1]["changes"] == {"before": {"prices": [ROW]}, "after": {"prices": []}}


async def test_a_list_that_was_changed_since_is_not_overwritten(bench: AdminBench) -> None:
    tag = (await bench.call("GET", "/prices")).headers["etag"]
    await put(bench, ROW)

    body = {"prices": [ANY]}
    late = await bench.http.put("/admin/v1/prices", headers={**HEADERS, "if-match": tag}, json=body)
    fresh = (await bench.call("GET", "/prices")).headers["etag"]
    mine = await bench.http.put("/admin/v1/prices", headers={**HEADERS, "if-match": fresh}, json=body)

    assert (late.status_code, late.json()["error"]["code"]) == (412, "precondition_failed")
    assert mine.status_code == 200


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"input": -1}, "input"),
        ({"output": -(10**30)}, "output"),
        ({"input": LARGEST_PRICE + 1}, "input"),
        ({"output": 10**400}, "output"),
        ({"input": 1.5}, "input"),
        ({"input": "150"}, "input"),
        ({"input": True}, "input"),
        ({"input": None}, "input"),
        ({"cached_input": -5}, "cached_input"),
        ({"cached_input": 151}, "cached_input"),
        ({"lane": "express"}, "lane"),
        ({"lane": None}, "lane"),
        ({"model": ""}, "model"),
        ({"model": "a\nb"}, "model"),
        ({"model": "x" * 10_000}, "model"),
        ({"surcharge": 1}, "surcharge"),
    ],
)
async def test_an_absurd_price_is_refused_by_its_field(bench: AdminBench, row: dict[str, Any], field: str) -> None:
    status, _, param = await bench.refused("PUT", "/prices", json={"prices": [ANY, {**ROW, **row}]})

    assert status == 400
    assert param is not None
    assert field in param
    assert "1" in param
    assert (await bench.done("GET", "/prices"))["version"] == 0


async def test_a_list_is_bounded_and_names_each_place_once(bench: AdminBench) -> None:
    many = [{**ANY, "model": f"m{number}"} for number in range(MOST_ROWS + 1)]

    assert (await bench.refused("PUT", "/prices", json={"prices": many}))[0] == 400
    assert (await bench.refused("PUT", "/prices", json={"prices": [ROW, ANY, {**ROW, "input": 500}]}))[2] == "prices.2"
    assert (await bench.refused("PUT", "/prices", json={}))[2] == "prices"
    await put(bench, *many[:-1])


def test_the_closest_row_counts() -> None:
    def price(figure: int, **place: str) -> dict[str, Any]:
        return {**place, "input": figure, "output": 0}

    rows = [price(1), price(2, lane="latency"), price(3, model="smol"), price(4, model="smol", lane="latency")]
    found = PriceList.parse(rows)
    asked = [("other", "throughput"), ("other", "latency"), ("smol", "throughput"), ("smol", "latency")]

    assert [found.of(*each).input for each in asked] == [1, 2, 3, 4]
    assert PriceList.parse(rows[3:]).of("smol", "throughput") == FREE


async def test_a_gateway_has_a_change_at_its_next_look_and_no_request_asks(bench: AdminBench) -> None:
    store = PriceStore(bench.redis)
    here = KnownPrices(store)
    before = await here.of("tiny", "latency")
    await store.put(PriceList.parse([ROW]))
    still = await here.of("tiny", "latency")
    await here.look()

    assert before == still == FREE
    assert await here.of("tiny", "latency") == Prices(input=150, cached=75, output=600)


async def test_usage_and_ledger_carry_what_each_request_cost(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    prices = Prices(input=150, cached=75, output=600)
    await bench.spend("acme", prompt=100, output=7, prices=prices, cached_tokens=40, gpu_us=1_500, kv_block_ms=250)
    await bench.spend("acme", prompt=10, output=1)

    usage = await bench.done("GET", "/tenants/acme/usage?group_by=lane")
    entry = next(csv.DictReader(io.StringIO((await bench.call("GET", "/tenants/acme/ledger?format=csv")).text)))

    cost = 60 * 150 + 40 * 75 + 7 * 600
    assert usage["currency"] == "EUR"
    assert (usage["total"]["cost"], usage["data"][0]["cost"]) == (cost, cost)
    assert (usage["total"]["gpu_seconds"], usage["total"]["kv_block_seconds"]) == (0.0015, 0.25)
    assert (entry["cost"], entry["currency"], entry["cached_input_price"]) == (str(cost), "EUR", "75")


async def test_chargeback_sums_a_month_by_tenant_and_organisation(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    await bench.done("POST", "/tenants", json={"id": "web", "parent": "acme"})
    await bench.done("POST", "/tenants", json={"id": "other"})
    await bench.done("POST", "/tenants", json={"id": "idle"})
    prices = Prices(input=3, cached=3, output=5)
    for tenant, root in (("acme", "acme"), ("web", "acme"), ("web", "acme"), ("other", "other")):
        await bench.spend(tenant, root=root, prompt=10, output=4, prices=prices)
    await bench.done("DELETE", "/tenants/other")
    month = datetime.now(UTC).strftime("%Y-%m")

    view = await bench.done("GET", f"/chargeback?month={month}")
    rows = list(csv.DictReader(io.StringIO((await bench.call("GET", f"/chargeback?month={month}&format=csv")).text)))

    assert [(line["organisation"], line["tenant"], line["cost"]) for line in view["tenants"]] == [
        ("acme", "acme", 50),
        ("other", "other", 50),
        ("acme", "web", 100),
    ]
    assert {line["organisation"]: line["cost"] for line in view["organisations"]} == {"acme": 150, "other": 50}
    assert (view["total"]["cost"], view["currency"], view["month"]) == (200, "EUR", month)
    assert [(row["kind"], row["tenant"], row["cost"]) for row in rows][-2:] == [
        ("organisation", "", "50"),
        ("total", "", "200"),
    ]
    assert {row["month"] for row in rows} == {month}


@pytest.mark.parametrize("month", ["1000-01", "2024-02", "9999-11", "9999-12"])
async def test_any_month_that_a_date_can_have_is_served(bench: AdminBench, month: str) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    await bench.spend("acme", root="acme", prompt=10, output=4)

    view = await bench.done("GET", f"/chargeback?month={month}")

    assert (view["month"], view["total"]["requests"]) == (month, 0)


@pytest.mark.parametrize("query", ["month=2026-13", "month=2026-1", "group_by=day", "group_by=lane,lane", "format=xml"])
async def test_a_chargeback_that_cannot_be_is_refused_by_name(bench: AdminBench, query: str) -> None:
    status, _, param = await bench.refused("GET", f"/chargeback?{query}")

    assert (status, param) == (400, query.split("=")[0])

"""OpenAI's own SDK as the client of tenants, keys, limits by model and usage."""

from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from openai.resources.admin.organization import AsyncOrganization

from fairlane.gateway.admin.openai.routes import OPERATIONS, PREFIX
from fairlane.quotas.limits import LARGEST, Prices
from tests.support.gateway.admin_app import ADMIN_KEY, HEADERS, AdminBench, ask

pytestmark = pytest.mark.anyio


@pytest.fixture
def organization(bench: AdminBench) -> AsyncOrganization:
    http: Any = bench.http  # the SDK's types name a fork of httpx
    client = openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="unused", admin_api_key=ADMIN_KEY, http_client=http, max_retries=0
    )
    return client.admin.organization


async def refused(bench: AdminBench, method: str, path: str, **options: Any) -> tuple[int, str | None]:
    answer = await bench.http.request(method, PREFIX + path, headers=HEADERS, **options)
    assert answer.is_error, answer.text
    return answer.status_code, answer.json()["error"]["param"]


def today() -> int:
    """When the day began, in Unix seconds."""
    return int(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp())


async def test_a_project_is_made_found_renamed_and_archived(bench: AdminBench, organization: AsyncOrganization) -> None:
    made = await organization.projects.create(name="Web shop")
    renamed = await organization.projects.update(made.id, name="Shop")
    archived = await organization.projects.archive(made.id)
    found = await organization.projects.retrieve(made.id)

    assert (made.object, made.name, made.status, made.archived_at) == (
        "organization.project",
        "Web shop",
        "active",
        None,
    )
    assert (renamed.name, archived.status, found) == ("Shop", "archived", archived)
    assert abs((archived.archived_at or 0) - made.created_at) < 30
    assert (await bench.done("GET", f"/tenants/{made.id}"))["state"] == "suspended"
    assert [entry["action"] for entry in await bench.audit()] == ["tenant.create", "tenant.update", "tenant.suspend"]


async def test_projects_come_page_by_page_and_archived_ones_if_asked_for(
    bench: AdminBench, organization: AsyncOrganization
) -> None:
    for number in range(7):
        await bench.done("POST", "/tenants", json={"id": f"t{number}"})
    for name in ("t0", "t3", "t6"):
        await organization.projects.archive(name)

    active = [project.id async for project in organization.projects.list(limit=2)]
    every = [project.id async for project in organization.projects.list(limit=3, include_archived=True)]

    assert active == ["t1", "t2", "t4", "t5"]
    assert every == [f"t{number}" for number in range(7)]


async def test_a_key_is_made_shown_without_its_secret_and_deleted(
    bench: AdminBench, organization: AsyncOrganization
) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})

    account = await organization.projects.service_accounts.create("acme", name="ci", expires_in_seconds=3_600)
    assert account.api_key is not None
    identity = await bench.keys.lookup(account.api_key.value)
    found = await organization.projects.api_keys.retrieve(account.api_key.id, project_id="acme")
    listed = [key async for key in organization.projects.api_keys.list("acme")]
    deleted = await organization.projects.api_keys.delete(account.api_key.id, project_id="acme")

    assert identity is not None
    assert identity.key.expires_at == pytest.approx(account.created_at + 3_600, abs=30)
    assert listed == [found]
    assert (found.name, found.redacted_value, found.owner.type) == ("ci", f"fl-{found.id}-***", "service_account")
    assert abs((found.last_used_at or 0) - found.created_at) < 30
    assert deleted.deleted
    assert await bench.keys.lookup(account.api_key.value) is None
    assert [key async for key in organization.projects.api_keys.list("acme")] == []
    with pytest.raises(openai.NotFoundError):
        await organization.projects.api_keys.retrieve(found.id, project_id="acme")


async def test_keys_come_page_by_page_without_revoked_ones(bench: AdminBench, organization: AsyncOrganization) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    ids = [(await bench.done("POST", "/tenants/acme/keys", json={"name": f"k{n}"}))["id"] for n in range(5)]
    await bench.done("DELETE", f"/tenants/acme/keys/{ids[1]}")

    assert {key.id async for key in organization.projects.api_keys.list("acme", limit=1)} == {*ids} - {ids[1]}
    assert [key async for key in organization.projects.api_keys.list("acme", owner_project_access="inactive")] == []


async def test_limits_of_a_model_are_shown_changed_and_hold(bench: AdminBench, organization: AsyncOrganization) -> None:
    by = [{"model": "other/model", "limits": {"tokens_per_minute": 9}}, {"lane": "latency", "limits": {}}]
    await bench.done("POST", "/tenants", json={"id": "acme", "limits_by": by})
    limits = organization.projects.rate_limits

    other, tiny = [limit async for limit in limits.list_rate_limits("acme", limit=1)]
    changed = await limits.update_rate_limit(
        tiny.id, project_id="acme", max_requests_per_1_minute=1, max_tokens_per_1_minute=LARGEST
    )
    cleared = await limits.update_rate_limit(other.id, project_id="acme", max_tokens_per_1_minute=LARGEST)

    assert (other.model, other.max_requests_per_1_minute, other.max_tokens_per_1_minute) == ("other/model", LARGEST, 9)
    assert (tiny.model, tiny.max_requests_per_1_minute, tiny.max_tokens_per_1_minute) == ("tiny", LARGEST, LARGEST)
    assert (changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (1, LARGEST)
    assert cleared.max_tokens_per_1_minute == LARGEST
    assert (await bench.done("GET", "/tenants/acme"))["limits_by"] == [
        {"model": None, "lane": "latency", "limits": {}},
        {"model": "tiny", "lane": None, "limits": {"requests_per_minute": 1}},
    ]
    statuses = (await bench.budgets.reserve(ask("acme", "f1"))).statuses
    assert [(status.scope, status.limit) for status in statuses] == [("model_lane", 1)]


async def test_usage_is_that_of_the_ledger(bench: AdminBench, organization: AsyncOrganization) -> None:
    for name in ("acme", "web", "gone"):
        await bench.done("POST", "/tenants", json={"id": name})
        await bench.spend(name, prompt=10, output=5)
    await bench.spend("acme", lane="throughput", prompt=100, output=50)
    await bench.done("DELETE", "/tenants/gone")

    page = await organization.usage.completions(start_time=today() - 86_400, group_by=["project_id", "service_tier"])
    total = await organization.usage.completions(start_time=today())
    one = await organization.usage.completions(start_time=today(), project_ids=["acme"], models=["tiny"])
    none = await organization.usage.completions(start_time=today(), models=["large"])

    earlier, now = page.data
    assert (earlier.results, earlier.start_time, now.start_time) == ([], today() - 86_400, today())
    assert now.end_time == today() + 86_400
    results: list[Any] = list(now.results)
    assert [
        (result.project_id, result.service_tier, result.input_tokens, result.output_tokens) for result in results
    ] == [
        ("acme", "flex", 100, 50),
        ("acme", "priority", 10, 5),
        ("gone", "priority", 10, 5),
        ("web", "priority", 10, 5),
    ]
    summed: Any = total.data[0].results[0]
    assert (summed.num_model_requests, summed.input_tokens, summed.project_id, summed.model) == (4, 130, None, None)
    assert one.data[0].results[0].num_model_requests == 2  # type: ignore[union-attr]
    assert none.data[0].results == []


async def test_costs_are_those_of_the_ledger(bench: AdminBench, organization: AsyncOrganization) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    prices = Prices(input=1_000_000, cached=1_000_000, output=2_000_000)
    await bench.spend("acme", prompt=10, output=5, prices=prices)
    await bench.spend("acme", prompt=10, output=5)

    page = await organization.usage.costs(start_time=today(), group_by=["project_id", "line_item"])
    none = await organization.usage.costs(start_time=today(), line_items=["large"])

    (result,) = page.data[-1].results
    assert result.object == "organization.costs.result"
    assert (result.project_id, result.line_item, result.api_key_id) == ("acme", "tiny", None)
    assert result.amount is not None
    assert (result.amount.value, result.amount.currency) == (0.02, "eur")
    assert none.data[-1].results == []


async def test_usage_comes_page_by_page_day_by_day(organization: AsyncOrganization) -> None:
    start = today() - 9 * 86_400
    first = await organization.usage.completions(start_time=start, end_time=start + 9 * 86_400, limit=5)
    assert first.next_page is not None
    second = await organization.usage.completions(
        start_time=start, end_time=start + 9 * 86_400, limit=5, page=first.next_page
    )

    assert [bucket.start_time for page in (first, second) for bucket in page.data] == [
        start + number * 86_400 for number in range(9)
    ]
    assert (first.has_more, second.has_more, second.next_page) == (True, False, None)


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "param"),
    [
        ("POST", "/projects", {"json": {}}, 400, "name"),
        ("POST", "/projects", {"json": {"name": ""}}, 400, "name"),
        ("POST", "/projects", {"json": {"name": "bell\u0007"}}, 400, "name"),
        ("POST", "/projects", {"json": {"name": "n", "geography": "EU"}}, 400, "geography"),
        ("POST", "/projects", {"json": {"name": "n", "owner": "me"}}, 400, "owner"),
        ("GET", "/projects?limit=101", {}, 400, "limit"),
        ("GET", "/projects?include_archived=perhaps", {}, 400, "include_archived"),
        ("GET", "/projects/nobody", {}, 404, None),
        ("POST", "/projects/nobody", {"json": {}}, 404, None),
        ("POST", "/projects/nobody/archive", {}, 404, None),
        ("GET", "/projects/nobody/api_keys", {}, 404, None),
        ("DELETE", "/projects/acme/api_keys/none", {}, 404, None),
        ("POST", "/projects/acme/service_accounts", {"json": {"name": "n", "expires_in_seconds": 0}}, 400, None),
        ("POST", "/projects/acme/rate_limits/rl-dGlueQ", {"json": {"max_requests_per_1_minute": -1}}, 400, None),
        ("POST", "/projects/acme/rate_limits/rl-dGlueQ", {"json": {"max_requests_per_1_day": 1}}, 400, None),
        ("POST", "/projects/acme/rate_limits/rl-dGlueQ", {"json": {"max_tokens_per_1_minute": 10**15 + 1}}, 400, None),
        ("POST", "/projects/acme/rate_limits/rl-bm9uZQ", {"json": {}}, 404, None),
        ("POST", "/projects/acme/rate_limits/!", {"json": {}}, 404, None),
        ("GET", "/usage/completions", {}, 400, "start_time"),
        ("GET", "/usage/completions?start_time=x", {}, 400, "start_time"),
        ("GET", "/usage/completions?start_time=-1", {}, 400, "start_time"),
        ("GET", "/usage/completions?start_time=5&end_time=5", {}, 400, "end_time"),
        ("GET", "/usage/completions?start_time=5&limit=32", {}, 400, "limit"),
        ("GET", "/usage/completions?start_time=5&page=x", {}, 400, "page"),
        ("GET", "/usage/completions?start_time=5&bucket_width=1h", {}, 400, "bucket_width"),
        ("GET", "/usage/completions?start_time=5&group_by=batch", {}, 400, "group_by.[0]"),
        ("GET", "/usage/completions?start_time=5&group_by[]=model&group_by[]=user_id", {}, 400, "group_by.[1]"),
        ("GET", "/usage/completions?start_time=5&user_ids[]=u", {}, 400, "user_ids[]"),
    ],
)
async def test_what_is_wrong_is_named_and_changes_nothing(
    bench: AdminBench, method: str, path: str, options: dict[str, Any], status: int, param: str | None
) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme"})
    before, log = await bench.done("GET", "/tenants"), await bench.audit()

    found = await refused(bench, method, path, **options)

    assert found[0] == status
    assert param is None or found[1] == param
    assert (await bench.done("GET", "/tenants"), await bench.audit()) == (before, log)


async def test_nobody_else_is_let_in(bench: AdminBench) -> None:
    for operation in OPERATIONS:
        path = PREFIX + operation.path.replace("{", "").replace("}", "")
        answer = await bench.http.request(operation.method, path, headers={"authorization": "Bearer wrong"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), operation.name

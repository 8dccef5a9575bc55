"""What a tenant sees of its own: who calls, usage and spend, and its last requests; nothing of others."""

import pytest

from fairlane.gateway.control.self_service import account
from tests.support.gateway.served import ASKED, CHAT, Served, error_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    for name in ("acme", "beta"):
        await fresh_gateway.tenant(name, timezone="Europe/Berlin", self_service="keys")
    return fresh_gateway


async def test_the_caller_is_told_who_it_is(served: Served) -> None:
    me = (await served.get("/v1/me")).json()

    assert (me["tenant"], me["tenant_name"], me["timezone"]) == (served.id_of(), "", "Europe/Berlin")
    assert me["key"]["id"] == served.keys["acme"].split("-")[1]
    assert me["may_manage_keys"] is True
    assert served.keys["acme"] not in str(me)


async def test_usage_is_of_the_calling_tenant(served: Served) -> None:
    for tenant, times in (("acme", 2), ("beta", 1)):
        for _ in range(times):
            assert (await served.post(CHAT, ASKED, tenant=tenant)).status_code == 200
    await served.landed()

    found = (await served.get("/v1/usage?group_by=day,key,model")).json()

    assert found["total"]["requests"] == 2
    (line,) = found["data"]
    assert (line["key"], line["model"]) == (served.keys["acme"].split("-")[1], "tiny")
    assert found.keys() == {"data", "total", "currency", "entries_from"}


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/usage?from=2026-11-30&to=2026-11-01", "to"),
        ("/v1/usage?group_by=tenant", "group_by"),
        ("/v1/usage?group_by=day,day", "group_by"),
        ("/v1/usage?from=yesterday", "from"),
        ("/v1/usage?incarnation=000000000000", "incarnation"),
        ("/v1/requests?limit=0", "limit"),
        ("/v1/requests?limit=101", "limit"),
        ("/v1/requests?after=x", "after"),
        ("/v1/requests?tenant=beta", "tenant"),
    ],
)
async def test_a_wrong_parameter_is_named(served: Served, path: str, param: str) -> None:
    answer = await served.get(path)

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == param


async def test_a_report_has_at_most_so_many_rows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "MOST_ROWS", 0)
    await served.post(CHAT, ASKED)
    await served.landed()

    answer = await served.get("/v1/usage?group_by=key")

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"] == "group_by"


async def test_the_last_requests_are_listed_in_pages_newest_first(served: Served) -> None:
    for number in range(3):
        await served.post(CHAT, ASKED, x_request_id=f"{served.id_of()}-{number}")
        await served.post(CHAT, ASKED, tenant="beta", x_request_id=f"theirs-{number}")
    await served.landed()

    await served.resources.insight.recorder.flush()
    found, query, page = [], "?limit=1", {"has_more": True}
    while page["has_more"]:
        page = (await served.get(f"/v1/requests{query}")).json()
        found += [each["request_id"] for each in page["data"]]
        query = f"?limit=1&after={page['last_id']}"

    assert found == [f"{served.id_of()}-{number}" for number in (2, 1, 0)]
    assert {each["tenant"] for each in (await served.get("/v1/requests")).json()["data"]} == {served.id_of()}


async def test_a_key_that_may_only_chat_sees_none_of_it(served: Served) -> None:
    await served.tenant("narrow", scopes={"endpoints": [CHAT]}, self_service="keys")

    for path in ("/v1/me", "/v1/usage", "/v1/requests", "/v1/keys"):
        assert error_of(await served.get(path, tenant="narrow")) == (403, "endpoint_not_allowed")


async def test_a_new_tenant_sees_nothing_of_an_earlier_one_of_its_id(served: Served) -> None:
    await served.post(CHAT, ASKED)
    await served.landed()
    await served.resources.insight.recorder.flush()
    assert (await served.get("/v1/requests")).json()["data"]

    await served.resources.accounts.tenants.delete(served.id_of())
    await served.tenant("acme", self_service="keys")

    assert (await served.get("/v1/requests")).json()["data"] == []
    assert (await served.get("/v1/usage")).json()["total"]["requests"] == 0
    assert len((await served.get("/v1/keys")).json()["data"]) == 1

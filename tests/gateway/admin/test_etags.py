"""Entity tags: a change that was made of something else than what stands is refused, and changes nothing."""

from functools import partial
from typing import Any

import anyio
import pytest

from fairlane.gateway.control.admin import routes as admin
from tests.support.gateway.admin_app import HEADERS, AdminBench

pytestmark = pytest.mark.anyio

CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("PATCH", "/tenants/acme", {"weight": 5}),
    ("PUT", "/tenants/acme/quota", {"tokens_per_day": 7}),
    ("PATCH", "/tenants/acme/quota", {"tokens_per_day": 7}),
    ("POST", "/tenants/acme/suspend", {}),
    ("DELETE", "/tenants/acme", {}),
]
"""Each of them changes acme as it is made below."""


@pytest.fixture(autouse=True)
async def acme(bench: AdminBench) -> None:
    await bench.done("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_day": 100}})


async def tag(bench: AdminBench, path: str = "/tenants/acme") -> str:
    return str((await bench.call("GET", path)).headers["etag"])


async def change(bench: AdminBench, method: str, path: str, body: dict[str, Any], if_match: str) -> tuple[int, str]:
    """Status, and code of the error."""
    headers = [*((name.encode(), value.encode()) for name, value in HEADERS.items()), (b"if-match", if_match.encode())]
    answer = await bench.http.request(method, f"/admin/v1{path}", headers=headers, json=body)
    return answer.status_code, answer.json()["error"]["code"] if answer.is_error else ""


async def test_a_tag_changes_with_the_tenant_and_with_nothing_else(bench: AdminBench) -> None:
    first = await tag(bench)
    await bench.spend("acme")
    await bench.done("POST", "/tenants", json={"id": "web", "parent": "acme"})
    await bench.done("PATCH", "/tenants/acme", json={"name": ""})
    unchanged = await tag(bench)
    changed = (await bench.call("PATCH", "/tenants/acme/quota", json={"tokens_per_day": 5})).headers["etag"]

    assert first == unchanged != changed
    assert changed == await tag(bench) == await tag(bench, "/tenants/acme/quota")


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_a_change_of_what_was_seen_is_made(
    bench: AdminBench, method: str, path: str, body: dict[str, Any]
) -> None:
    assert await change(bench, method, path, body, await tag(bench)) == (200, "")


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
@pytest.mark.parametrize("form", ['"999"', "W/{}", '"0", W/"1"'])
async def test_a_change_of_something_else_is_412_and_changes_nothing(
    bench: AdminBench, method: str, path: str, body: dict[str, Any], form: str
) -> None:
    before, log = await bench.done("GET", "/tenants/acme"), await bench.audit()

    refused = await change(bench, method, path, body, form.format(await tag(bench)))

    assert refused == (412, "precondition_failed")
    assert await bench.done("GET", "/tenants/acme") == before
    assert await bench.audit() == log


@pytest.mark.parametrize(("method", "call"), [("DELETE", ""), ("POST", "/rotate")])
async def test_a_key_that_was_changed_since_is_not_ended(bench: AdminBench, method: str, call: str) -> None:
    made = await bench.done("POST", "/tenants/acme/keys", json={"name": "old"})
    path = f"/tenants/acme/keys/{made['id']}"
    seen = (await bench.call("GET", path)).headers["etag"]
    await bench.done("PATCH", path, json={"name": "new"})
    now = (await bench.call("GET", path)).headers["etag"]

    assert await change(bench, method, path + call, {}, seen) == (412, "precondition_failed")
    assert [key["state"] for key in (await bench.done("GET", "/tenants/acme/keys"))["data"]] == ["active"]
    assert (await change(bench, method, path + call, {}, now))[0] in (200, 201)


async def test_what_is_never_taken_is_refused_for_that_whatever_was_seen(bench: AdminBench) -> None:
    made = await bench.done("POST", "/tenants/acme/keys", json={"name": "one"})
    path = f"/tenants/acme/keys/{made['id']}/rotate"

    assert await change(bench, "POST", path, {"overlap_s": 1e12}, '"999"') == (400, "invalid_request_error")


@pytest.mark.parametrize("form", ["*", '"0", {}', '{},W/"2"'])
async def test_any_of_several_tags_will_do(bench: AdminBench, form: str) -> None:
    assert await change(bench, *CHANGES[0], form.format(await tag(bench))) == (200, "")


@pytest.mark.parametrize("text", ["", "1", '"1" "2"', '"1', '*, "1"', '"é"', '"' + "1" * 1_000 + '"'])
async def test_what_is_no_tag_is_400(bench: AdminBench, text: str) -> None:
    assert await change(bench, *CHANGES[0], text) == (400, "invalid_request_error")
    assert (await bench.done("GET", "/tenants/acme"))["weight"] == 1.0


async def test_what_is_not_there_is_404_whatever_it_was_taken_for(bench: AdminBench) -> None:
    for if_match in ("*", '"1"'):
        assert await change(bench, "PATCH", "/tenants/nobody", {}, if_match) == (404, "not_found")


async def test_of_changes_to_one_version_one_is_made(bench: AdminBench) -> None:
    seen, ends = await tag(bench), []

    async def rename(name: str) -> None:
        ends.append((*await change(bench, "PATCH", "/tenants/acme", {"name": name}, seen), name))

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(partial(rename, f"writer {number}"))

    (winner,) = [name for status, _, name in ends if status == 200]
    assert [code for status, code, _ in ends if status != 200] == ["precondition_failed"] * 4
    assert (await bench.done("GET", "/tenants/acme"))["name"] == winner
    assert len(await bench.audit()) == 2


async def test_every_call_that_shows_a_version_says_it(bench: AdminBench) -> None:
    tagged = {operation.name for operation in admin.OPERATIONS if operation.tagged}
    honouring = {operation.name for operation in admin.OPERATIONS if operation.if_match}
    document = (await bench.http.get("/openapi.json")).json()
    for item in document["paths"].values():
        for operation in item.values():
            asked = {field["name"] for field in operation["parameters"] if field["in"] == "header"}
            answers = [shown for status, shown in operation["responses"].items() if status.startswith("2")]
            assert any("etag" in answer["headers"] for answer in answers) == (operation["operationId"] in tagged)
            assert ("412" in operation["responses"]) == ("if-match" in asked) == (operation["operationId"] in honouring)

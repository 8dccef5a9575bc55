"""Responses that are kept: chains, what is shown of them, and to whom."""

import threading
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from fairlane.gateway.dialects.openai.item_ids import ItemIds
from tests.support.gateway.response_events import RESPONSES, events, prompt
from tests.support.gateway.served import SAID, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


async def test_a_chain_goes_on_from_what_was_kept(served: Served) -> None:
    async with served.sdk() as sdk:
        first = await sdk.responses.create(model="tiny", input="I am Ann.", instructions="Be brief.")
        second = await sdk.responses.create(model="tiny", input="Who am I?", previous_response_id=first.id)
        third = await sdk.responses.create(model="tiny", input="Sure?", previous_response_id=second.id, store=False)
        listed = await sdk.responses.input_items.list(second.id, order="asc", limit=2)
        newest = await sdk.responses.input_items.list(second.id, limit=1)

    assert second.previous_response_id == first.id
    said = [turn.partition("\n")[2].removesuffix("<|im_end|>\n") for turn in prompt(served).split("<|im_start|>")[1:]]
    assert said == ["I am Ann.", SAID, "Who am I?", SAID, "Sure?", ""]
    assert [item.type for item in listed.data] == ["message", "message"]
    assert listed.has_more
    assert newest.data[0].model_dump()["content"][0]["text"] == "Who am I?"
    assert third.store is False  # type: ignore[attr-defined]
    assert (await served.get(f"{RESPONSES}/{third.id}")).status_code == 404


async def test_a_kept_response_is_shown_and_forgotten(served: Served) -> None:
    async with served.sdk() as sdk:
        made = await sdk.responses.create(model="tiny", input="What?", metadata={"a": "b"})
        shown = await sdk.responses.retrieve(made.id)
        assert shown == made
        await sdk.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.responses.create(model="tiny", input="And?", previous_response_id=made.id)

    assert refused.value.param == "previous_response_id"


@pytest.mark.parametrize("field", ["previous_response_id", "stream"])
@pytest.mark.parametrize("padding", [0, 20_000])
async def test_a_body_that_is_no_unicode_is_refused_before_anything_is_looked_up(
    served: Served, padding: int, field: str
) -> None:
    body = b'{"model": "tiny", "input": "%b", "%b": "\xff"}' % (b"x" * padding, field.encode())

    for headers in ({}, {"idempotency_key": "a key"}):
        assert error_of(await served.post(RESPONSES, body, **headers)) == (400, "invalid_request_error")


@pytest.mark.parametrize("value", ["9" * 4_000, "1e999999"])
@pytest.mark.parametrize("field", ["previous_response_id", "stream"])
async def test_a_number_out_of_range_is_refused_before_anything_is_looked_up(
    served: Served, field: str, value: str
) -> None:
    body = f'{{"model": "tiny", "input": "x", "{field}": {value}}}'.encode()

    for headers in ({}, {"idempotency_key": "a key"}):
        assert error_of(await served.post(RESPONSES, body, **headers)) == (400, "invalid_request_error")


async def test_a_streamed_response_is_kept_too(served: Served) -> None:
    last = (await events(served, model="tiny", input="What?"))[-1]

    assert last.type == "response.completed"
    shown = (await served.get(f"{RESPONSES}/{last.response.id}")).json()
    assert Response.model_validate(shown).output_text == SAID


async def test_another_tenant_finds_nothing(served: Served) -> None:
    await served.tenant("other")
    made = (await served.post(RESPONSES, {"model": "tiny", "input": "What?"})).json()["id"]

    assert (await served.get(f"{RESPONSES}/{made}", tenant="other")).status_code == 404
    assert (await served.get(f"{RESPONSES}/{made}/input_items", tenant="other")).status_code == 404
    body = {"model": "tiny", "input": "And?", "previous_response_id": made}
    assert (await served.post(RESPONSES, body, tenant="other")).status_code == 404
    async with served.sdk("other") as sdk:
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.delete(made)
    assert (await served.get(f"{RESPONSES}/{made}")).status_code == 200


async def test_what_is_kept_is_gone_with_its_tenant(served: Served) -> None:
    made = (await served.post(RESPONSES, {"model": "tiny", "input": "What?"})).json()["id"]
    await served.resources.accounts.tenants.delete(served.id_of("acme"))
    await served.resources.control.erasure.round()
    served.resources.accounts.authenticator.forget()

    assert not [key async for key in served.store.scan_iter(f"*{{{served.id_of()}}}:response*")]
    await served.tenant()
    assert (await served.get(f"{RESPONSES}/{made}")).status_code == 404


async def test_nothing_of_a_kept_response_can_be_read_in_the_store(served: Served) -> None:
    made = (await served.post(RESPONSES, {"model": "tiny", "input": "What is a zebra?"})).json()["id"]

    for key in [key async for key in served.store.scan_iter(f"*{{{served.id_of()}}}:response*")]:
        held = await (served.store.hgetall(key) if await served.store.type(key) == b"hash" else served.store.dump(key))
        assert made.encode() not in key + repr(held).encode()
        assert b"zebra" not in repr(held).encode()


@pytest.mark.parametrize("section", [{"responses_kept_s": 0}, {"response_bytes": 1024}])
async def test_what_cannot_be_kept_says_so(valkey_url: str, section: dict[str, Any]) -> None:
    async with serving(settings(valkey_url, section=section)) as served:
        await served.tenant()
        asked = {"model": "tiny", "input": "What? " * 30, "store": True}
        whole = (await served.post(RESPONSES, asked)).json()
        streamed = (await events(served, **asked))[-1]
        assert (await served.get(f"{RESPONSES}/{whole['id']}")).status_code == 404

    assert whole["status"] == "completed"
    assert whole["store"] is False
    assert streamed.type == "response.completed"
    assert streamed.response.model_extra is not None
    assert streamed.response.model_extra["store"] is False


async def test_a_chain_may_grow_up_to_the_models_context(served: Served) -> None:
    previous: dict[str, str] = {}
    answer = await served.post(RESPONSES, {"model": "tiny", "input": "Why? " * 20})
    while answer.status_code == 200:
        previous = {"previous_response_id": answer.json()["id"]}
        answer = await served.post(RESPONSES, {"model": "tiny", "input": "Why? " * 20, **previous})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert len((await served.get(f"{RESPONSES}/{previous['previous_response_id']}/input_items")).json()["data"]) > 2


async def test_a_long_conversation_is_made_ready_to_be_kept_outside_the_event_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    new = ItemIds.new

    def recorded_id(self: ItemIds, prefix: str) -> str:
        threads.append(threading.get_ident())
        return new(self, prefix)

    monkeypatch.setattr(ItemIds, "new", recorded_id)
    thoughts = [{"type": "reasoning"}] * 1_000
    answer = await served.post(RESPONSES, {"model": "tiny", "input": [{"role": "user", "content": "Why?"}, *thoughts]})

    assert answer.status_code == 200
    assert len(threads) == 1_002
    assert threads.count(threading.get_ident()) == 1, "the message of the answer"
    listed = (await served.get(f"{RESPONSES}/{answer.json()['id']}/input_items?order=asc&limit=2")).json()["data"]
    assert [item["type"] for item in listed] == ["message", "reasoning"]


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("?stream=true", 400, "stream"),
        ("?nonsense=1", 400, "nonsense"),
        ("/input_items?limit=0", 400, "limit"),
        ("/input_items?order=up", 400, "order"),
        ("/input_items?after=msg_0", 400, "after"),
        ("/input_items", 200, None),
        ("/nonsense", 404, None),
    ],
)
async def test_what_is_asked_of_a_kept_response_is_checked(
    served: Served, path: str, status: int, param: str | None
) -> None:
    made = (await served.post(RESPONSES, {"model": "tiny", "input": "What?"})).json()["id"]

    answer = await served.get(f"{RESPONSES}/{made}{path}")

    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("response_id", ["%ff", "%00", "..%2f..", "a" * 5_000, "resp_0", "é"])
async def test_no_id_is_too_odd_to_be_unknown(served: Served, response_id: str) -> None:
    for path in (f"{RESPONSES}/{response_id}", f"{RESPONSES}/{response_id}/input_items"):
        assert (await served.get(path)).status_code == 404
    async with served.http as client:
        headers = {"authorization": f"Bearer {served.keys['acme']}"}
        assert (await client.delete(f"{RESPONSES}/{response_id}", headers=headers)).status_code == 404

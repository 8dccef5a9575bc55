"""Stored conversations, and responses that are added to them."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.conversations import ConversationItemList

from fairlane.gateway.request.service_level import IGNORED_HEADER
from tests.support.gateway.response_events import RESPONSES, events, prompt
from tests.support.gateway.served import SAID, Served, error_of, serving, settings

pytestmark = pytest.mark.anyio

PATH = "/v1/conversations"
ANN: Any = {"type": "message", "role": "user", "content": "I am Ann."}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


def said(served: Served) -> list[str]:
    """The contents of the prompt's turns."""
    turns = prompt(served).split("<|im_start|>")[1:-1]
    return [turn.partition("\n")[2].removesuffix("<|im_end|>\n") for turn in turns]


def texts(listed: Any) -> list[str]:
    return [item.content[0].text for item in listed.data]


async def test_responses_are_added_to_their_conversation(served: Served) -> None:
    async with served.sdk() as sdk:
        talk = await sdk.conversations.create(items=[ANN], metadata={"of": "us"})
        first = await sdk.responses.create(model="tiny", input="Who am I?", conversation=talk.id)
        last = (await events(served, model="tiny", input="Sure?", conversation={"id": talk.id}, store=False))[-1]
        listed = await sdk.conversations.items.list(talk.id, order="asc")
        counted = await sdk.responses.input_tokens.count(model="tiny", conversation=talk.id)
        alone = await sdk.responses.create(model="tiny", conversation=talk.id, input=openai.omit)

    assert (talk.object, talk.metadata) == ("conversation", {"of": "us"})
    assert first.conversation is not None
    assert first.conversation.id == talk.id
    assert last.type == "response.completed"
    assert last.response.conversation is not None
    assert said(served) == ["I am Ann.", "Who am I?", SAID, "Sure?", SAID]
    assert alone.usage is not None
    assert alone.usage.input_tokens == counted.input_tokens
    assert texts(listed) == ["I am Ann.", "Who am I?", SAID, "Sure?", SAID]
    assert counted.input_tokens > 0
    assert listed.data[2].id == first.output[0].id


async def test_a_conversation_is_shown_changed_and_deleted(served: Served) -> None:
    async with served.sdk() as sdk:
        made = await sdk.conversations.create()
        assert made.metadata == {}
        changed = await sdk.conversations.update(made.id, metadata={"a": "b"})
        assert await sdk.conversations.retrieve(made.id) == changed
        assert (changed.metadata, changed.created_at) == ({"a": "b"}, made.created_at)
        deleted = await sdk.conversations.delete(made.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
        for call in (sdk.conversations.retrieve, sdk.conversations.delete, sdk.conversations.items.list):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.responses.create(model="tiny", input="x", conversation=made.id)

    assert refused.value.param == "conversation"


async def test_items_are_added_listed_and_deleted(served: Served) -> None:
    async with served.sdk() as sdk:
        talk = await sdk.conversations.create()
        more: list[Any] = [{**ANN, "content": f"{number}"} for number in range(5)]
        added = await sdk.conversations.items.create(talk.id, items=more, include=["message.output_text.logprobs"])
        assert texts(added) == ["0", "1", "2", "3", "4"]
        assert (added.object, added.has_more, added.first_id, added.last_id) == (
            "list",
            False,
            added.data[0].id,
            added.data[4].id,
        )
        newest = await sdk.conversations.items.list(talk.id, limit=2, include=["reasoning.encrypted_content"])
        assert (texts(newest), newest.has_more) == (["4", "3"], True)
        rest = await newest.get_next_page()
        assert texts(rest) == ["2", "1"]
        one = added.data[1].id
        assert one is not None
        shown = await sdk.conversations.items.retrieve(one, conversation_id=talk.id)
        assert shown == added.data[1]
        assert (await sdk.conversations.items.delete(one, conversation_id=talk.id)).id == talk.id
        for call in (sdk.conversations.items.retrieve, sdk.conversations.items.delete):
            with pytest.raises(openai.NotFoundError):
                await call(one, conversation_id=talk.id)
        assert texts(await sdk.conversations.items.list(talk.id, order="asc")) == ["0", "2", "3", "4"]


async def test_an_empty_page_of_items_has_ids_as_the_sdk_declares_them(served: Served) -> None:
    talk = (await served.post(PATH, {})).json()["id"]

    for page in (await served.get(f"{PATH}/{talk}/items"), await served.post(f"{PATH}/{talk}/items", {"items": []})):
        read = ConversationItemList.model_validate(page.json(), strict=True)
        assert (read.data, read.first_id, read.last_id, read.has_more) == ([], "", "", False)


async def test_concurrent_changes_are_all_kept(served: Served) -> None:
    async with served.sdk() as sdk:
        talk = await sdk.conversations.create()
        more: list[list[Any]] = [[{**ANN, "content": str(each)}] for each in range(8)]
        both = [sdk.conversations.items.create(talk.id, items=items) for items in more]
        answers = [sdk.responses.create(model="tiny", input=f"q{each}", conversation=talk.id) for each in range(4)]
        await asyncio.gather(*both, *answers)
        listed = await sdk.conversations.items.list(talk.id, limit=100)

    assert sorted(texts(listed)) == sorted([*map(str, range(8)), *[f"q{each}" for each in range(4)], *[SAID] * 4])


async def test_another_tenant_finds_nothing(served: Served) -> None:
    await served.tenant("other")
    async with served.sdk() as sdk, served.sdk("other") as other:
        talk = await sdk.conversations.create(items=[ANN])
        for call in (other.conversations.retrieve, other.conversations.delete, other.conversations.items.list):
            with pytest.raises(openai.NotFoundError):
                await call(talk.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model="tiny", input="x", conversation=talk.id)
        assert (await sdk.conversations.retrieve(talk.id)).id == talk.id


async def test_conversations_and_responses_are_not_taken_for_each_other(served: Served) -> None:
    talk = (await served.post(PATH, {"items": [ANN]})).json()["id"]
    made = (await served.post(RESPONSES, {"model": "tiny", "input": "x"})).json()["id"]

    for path in (f"{RESPONSES}/{talk}", f"{RESPONSES}/{talk}/input_items", f"{PATH}/{made}", f"{PATH}/{made}/items"):
        assert (await served.get(path)).status_code == 404
    for fields in ({"previous_response_id": talk}, {"conversation": made}):
        assert (await served.post(RESPONSES, {"model": "tiny", "input": "x", **fields})).status_code == 404
    assert (await served.get(f"{RESPONSES}/{made}")).status_code == 200


async def test_what_is_kept_is_gone_with_its_tenant_and_unreadable_before(served: Served) -> None:
    talk = (await served.post(PATH, {"items": [{**ANN, "content": "zebra"}], "metadata": {"of": "zebra"}})).json()["id"]
    keys = [key async for key in served.store.scan_iter(f"*{{{served.id_of()}}}:response:*")]
    for key in keys:
        assert b"zebra" not in repr(await served.store.hgetall(key)).encode()
        assert talk.encode() not in key
    await served.resources.accounts.tenants.delete(served.id_of("acme"))
    await served.resources.control.erasure.round()

    assert keys
    assert not [key async for key in served.store.scan_iter(f"*{{{served.id_of()}}}:response*")]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"items": [{"type": "nonsense"}]}, "items.[0]"),
        (PATH, {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items.[0]"),
        (PATH, {"metadata": {"a": 1}}, "metadata.a"),
        (f"{PATH}/{{talk}}", {"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        (f"{PATH}/{{talk}}/items", {}, "items"),
        (RESPONSES, {"conversation": {"id": 1}}, "conversation"),
        (RESPONSES, {"conversation": ["x"]}, "conversation"),
        (RESPONSES, {"conversation": "{talk}", "previous_response_id": "{made}"}, "conversation"),
    ],
)
async def test_what_is_wrong_is_named(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    talk = (await served.post(PATH, {})).json()["id"]
    made = (await served.post(RESPONSES, {"model": "tiny", "input": "x"})).json()["id"]
    filled = {
        name: value.format(talk=talk, made=made) if isinstance(value, str) else value for name, value in body.items()
    }
    usual = {"model": "tiny", "input": "x"} if path == RESPONSES else {}
    answer = await served.post(path.format(talk=talk), {**usual, **filled})

    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"items": [], "metadata": {}}),
        (PATH, {"items": None, "metadata": None}),
        (f"{PATH}/{{talk}}/items", {"items": []}),
        (RESPONSES, {"input": [], "conversation": "{talk}"}),
        (RESPONSES, {"input": "x", "conversation": "", "previous_response_id": "", "truncation": ""}),
        (RESPONSES, {"input": "x", "conversation": {}, "previous_response_id": None, "truncation": None}),
    ],
)
async def test_what_is_empty_asks_for_nothing(served: Served, path: str, body: dict[str, Any]) -> None:
    talk = (await served.post(PATH, {"items": [ANN]})).json()["id"]
    filled = {name: talk if value == "{talk}" else value for name, value in body.items()}
    answer = await served.post(path.format(talk=talk), {**({"model": "tiny"} if path == RESPONSES else {}), **filled})

    assert answer.status_code == 200, answer.text


async def test_unknown_fields_are_ignored_and_named(served: Served) -> None:
    made = await served.post(PATH, {"items": [{**ANN, "mood": "good"}], "flavour": "mint"})
    changed = await served.post(f"{PATH}/{made.json()['id']}", {"metadata": {}, "flavour": "mint"})

    assert made.headers[IGNORED_HEADER] == "flavour, items.mood"
    assert changed.headers[IGNORED_HEADER] == "flavour"


async def test_conversations_are_bounded(valkey_url: str) -> None:
    async with serving(settings(valkey_url, section={"response_bytes": 2_000})) as served:
        await served.tenant()
        talk = (await served.post(PATH, {"items": [ANN], "metadata": dict.fromkeys("abc", "x" * 512)})).json()["id"]
        too_large = await served.post(PATH, {"items": [{**ANN, "content": "x" * 3_000}]})
        full = await served.post(f"{PATH}/{talk}/items", {"items": [{**ANN, "content": "x" * 500}]})
        answer = (await served.post(RESPONSES, {"model": "tiny", "input": "x" * 200, "conversation": talk})).json()

    assert error_of(too_large) == error_of(full) == (400, "request_exceeds_limit")
    assert (answer["status"], answer["conversation"]) == ("completed", None)

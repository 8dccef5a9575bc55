"""References to stored items in the input of a response."""

from typing import Any

import openai
import pytest

from fairlane.gateway.api.stored_input import MOST_READ
from fairlane.gateway.dialects.openai.item_ids import stored_with
from tests.support.gateway.response_events import RESPONSES, events, prompt
from tests.support.gateway.served import SAID, Served

pytestmark = pytest.mark.anyio

ANN = {"role": "user", "content": "I am Ann."}
WHO = {"role": "user", "content": "Who am I?"}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


async def ask(served: Served, *items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = await served.post(RESPONSES, {"model": "tiny", "input": [*items], **fields})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def said(served: Served) -> list[str]:
    """The contents of the prompt's turns."""
    turns = prompt(served).split("<|im_start|>")[1:-1]
    return [turn.partition("\n")[2].removesuffix("<|im_end|>\n") for turn in turns]


@pytest.mark.parametrize("shape", [{"type": "item_reference"}, {}, {"type": None}])
async def test_a_reference_stands_for_the_stored_item(served: Served, shape: dict[str, Any]) -> None:
    first = await ask(served, ANN)
    await ask(served, ANN, {**shape, "id": first["output"][0]["id"]}, WHO)

    assert said(served) == ["I am Ann.", SAID, "Who am I?"]


async def test_items_of_the_input_and_of_streams_can_be_referred_to(served: Served) -> None:
    last = (await events(served, model="tiny", input="I am Ann."))[-1]
    assert last.type == "response.completed"
    listed = (await served.get(f"{RESPONSES}/{last.response.id}/input_items")).json()["data"]
    ids = [listed[0]["id"], last.response.output[0].id]
    async with served.sdk() as sdk:
        references: list[Any] = [{"type": "item_reference", "id": each} for each in ids]
        again = await sdk.responses.create(model="tiny", input=[*references, WHO])  # type: ignore[list-item]
        counted = await sdk.responses.create(model="tiny", previous_response_id=again.id, input=[*references])

    assert {places[0] for each in ids if (places := stored_with(each or "")) is not None} == {last.response.id}
    assert said(served) == ["I am Ann.", SAID, "Who am I?", SAID, "I am Ann.", SAID]
    assert counted.status == "completed"


async def test_an_item_of_a_conversation_can_be_referred_to(served: Served) -> None:
    async with served.sdk() as sdk:
        talk = await sdk.conversations.create(items=[{"role": "user", "content": "I am Ann."}])
        added = await sdk.conversations.items.create(talk.id, items=[{"role": "user", "content": "And Bob."}])
        first = (await sdk.conversations.items.list(talk.id, order="asc")).data[0].id
    await ask(served, {"type": "item_reference", "id": added.data[0].id}, {"id": first}, WHO)

    assert said(served) == ["And Bob.", "I am Ann.", "Who am I?"]


async def test_a_later_response_keeps_an_item_whose_own_response_is_deleted(served: Served) -> None:
    first = await ask(served, ANN)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    second = await ask(served, ANN, reference, WHO)
    async with served.sdk() as sdk:
        await sdk.responses.delete(first["id"])
    await ask(served, ANN, reference, WHO, {"type": "item_reference", "id": second["output"][0]["id"]}, WHO)

    assert said(served) == ["I am Ann.", SAID, "Who am I?", SAID, "Who am I?"]


async def test_an_unknown_item_is_named(served: Served) -> None:
    await served.tenant("other")
    theirs = (await served.post(RESPONSES, {"model": "tiny", "input": "Secret."}, tenant="other")).json()
    unstored = await ask(served, ANN, store=False)
    ids = ["msg_0", "x" * 500, theirs["output"][0]["id"], unstored["output"][0]["id"], f"msg_{'0' * 52}"]
    async with served.sdk() as sdk:
        for item_id in ids:
            with pytest.raises(openai.NotFoundError) as refused:
                await sdk.responses.create(model="tiny", input=[ANN, {"type": "item_reference", "id": item_id}])  # type: ignore[list-item]
            assert refused.value.param == "input"
            assert "`input.[1]`" in refused.value.message


@pytest.mark.parametrize("item_id", [None, "", 1, {}])
async def test_a_reference_needs_an_id(served: Served, item_id: object) -> None:
    answer = await served.post(RESPONSES, {"model": "tiny", "input": [ANN, {"type": "item_reference", "id": item_id}]})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input.[1].id")


async def test_the_responses_that_one_body_reads_are_bounded(served: Served) -> None:
    ids = [f"msg_{number:048x}0001" for number in range(MOST_READ + 1)]
    answer = await served.post(RESPONSES, {"model": "tiny", "input": [{"id": each} for each in ids]})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")

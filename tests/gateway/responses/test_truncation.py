"""`truncation: auto`: a conversation that is too long loses its oldest turns."""

import tracemalloc
from typing import Any

import pytest

from tests.support.gateway.response_events import RESPONSES, prompt
from tests.support.gateway.served import Served

pytestmark = pytest.mark.anyio

CONTEXT = 512
CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "seen " * 20}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


def turns(count: int) -> list[dict[str, Any]]:
    """A conversation of numbered questions and answers."""
    pairs = [
        [{"role": "user", "content": f"Question {each}"}, {"role": "assistant", "content": f"Answer {each} " * 5}]
        for each in range(count)
    ]
    return [turn for pair in pairs for turn in pair]


async def asked(served: Served, items: list[dict[str, Any]], **fields: Any) -> tuple[dict[str, Any], str]:
    answer = await served.post(RESPONSES, {"model": "tiny", "input": items, "truncation": "auto", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json(), prompt(served)


LAST = {"role": "user", "content": "The last question"}


async def test_the_oldest_turns_are_dropped_and_instructions_stay(served: Served) -> None:
    answer, shown = await asked(served, [*turns(40), LAST], instructions="Be brief.")

    assert answer["truncation"] == "auto"
    assert shown.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nQuestion ")
    assert "Question 0" not in shown
    assert "Answer 39" in shown
    assert "The last question" in shown
    assert CONTEXT // 2 < answer["usage"]["input_tokens"] <= CONTEXT * 3 // 4
    listed = (await served.get(f"{RESPONSES}/{answer['id']}/input_items?order=asc&limit=1")).json()["data"]
    assert listed[0]["content"][0]["text"] == "Question 0", "what is stored is whole"


async def test_room_is_left_for_the_stated_output(served: Served) -> None:
    answer, _ = await asked(served, [*turns(40), LAST], max_output_tokens=200)

    assert answer["usage"]["input_tokens"] <= CONTEXT - 200
    assert answer["usage"]["input_tokens"] > CONTEXT - 300


async def test_a_conversation_that_fits_is_left_alone(served: Served) -> None:
    items = [*turns(3), LAST]
    answer, shown = await asked(served, items, max_output_tokens=CONTEXT)
    plain = (await served.post(RESPONSES, {"model": "tiny", "input": items})).json()

    assert "Question 0" in shown
    assert answer["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
    assert plain["truncation"] == "disabled"


async def test_an_agents_oldest_calls_are_dropped_with_their_results(served: Served) -> None:
    work = [dict(each) for number in range(30) for each in (CALL, RESULT) if number or each]
    _, shown = await asked(served, [LAST, *work])

    assert "The last question" in shown
    assert shown.count("seen seen") < 30 * 19
    assert shown.index("assistant") < shown.index("seen"), "a result follows its call"


async def test_counting_truncates_as_the_response_does(served: Served) -> None:
    body = {"model": "tiny", "input": [*turns(40), LAST], "truncation": "auto"}
    counted = (await served.post(f"{RESPONSES}/input_tokens", body)).json()["input_tokens"]

    assert counted == (await served.post(RESPONSES, body)).json()["usage"]["input_tokens"]


@pytest.mark.parametrize("truncation", [None, "disabled", "auto"])
async def test_what_cannot_be_shortened_is_refused(served: Served, truncation: str | None) -> None:
    long = [{"role": "user", "content": "Why? " * 600}]
    answer = await served.post(RESPONSES, {"model": "tiny", "input": long, "truncation": truncation})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_many_turns_take_little_memory(served: Served) -> None:
    tracemalloc.start()
    try:
        await asked(served, [{"role": "user", "content": "a"}] * 2_000, store=False)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 12 * 2**20

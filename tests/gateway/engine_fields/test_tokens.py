"""vLLM's fields for tokens: log-probabilities of the prompt, ids, special tokens and stops in the text."""

import json
from typing import Any

import pytest

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline import fitting
from tests.support.gateway.served import ASKED, CHAT, COMPLETIONS, SAID, Served

pytestmark = pytest.mark.anyio

PROMPT = "The capital"
COMPLETION = {"model": "tiny", "prompt": PROMPT}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant(limits={"tokens_per_day": 1_000_000})
    return fresh_gateway


def text_model(served: Served) -> TextModel:
    return TextModel(served.worker.card)


async def answer(served: Served, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    base = COMPLETION if path == COMPLETIONS else ASKED
    got = await served.post(path, {**base, **fields})
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


async def frames(served: Served, path: str = COMPLETIONS, **fields: Any) -> list[dict[str, Any]]:
    base = COMPLETION if path == COMPLETIONS else ASKED
    got = await served.post(path, {**base, **fields, "stream": True})
    assert got.status_code == 200, got.text
    return [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: {")]


async def refused(served: Served, path: str = COMPLETIONS, **fields: Any) -> str:
    base = COMPLETION if path == COMPLETIONS else ASKED
    got = await served.post(path, {**base, **fields})
    assert got.status_code == 400, got.text
    param: str = got.json()["error"]["param"]
    return param


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_a_log_likelihood_is_read_from_an_echo(served: Served, max_tokens: int, as_ids: bool) -> None:
    """As lm-eval's `local-completions` asks for it."""
    text = text_model(served)
    ids = text.encode(PROMPT)
    asked: dict[str, Any] = {"temperature": 0, "seed": 1234, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    found = await answer(served, prompt=[[*ids]] if as_ids else PROMPT, **asked)
    drawn = [*served.worker.script[:max_tokens]]

    [choice] = found["choices"]
    said = [text.token_text(token) for token in (*ids, *drawn)]
    assert choice["text"] == "".join(said)
    assert choice["finish_reason"] == "length"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == said
    assert logprobs["token_logprobs"] == [None, *[-0.75] * (len(ids) - 1), *[-0.5] * max_tokens]
    assert logprobs["top_logprobs"][:2] == [None, {text.token_text(65): -0.25, said[1]: -0.75}]
    assert logprobs["text_offset"] == [len("".join(said[:place])) for place in range(len(said))]
    assert found["usage"]["prompt_tokens"] == len(ids)
    assert found["usage"]["completion_tokens"] == max_tokens
    await served.landed()
    assert await served.ledger() == [("finished", len(ids), max_tokens)]


async def test_a_shortened_prompt_is_echoed_as_it_was_computed(served: Served) -> None:
    text = text_model(served)
    kept = text.encode(PROMPT)[-2:]
    found = await answer(served, echo=True, logprobs=0, max_tokens=0, truncate_prompt_tokens=2)

    [choice] = found["choices"]
    assert (choice["text"], len(choice["logprobs"]["tokens"])) == (text.decode(kept), 2)


async def test_an_echo_of_several_prompts_and_choices_has_each_prompt_with_its_choices(served: Served) -> None:
    text = text_model(served)
    found = await answer(served, prompt=["ab", "France"], n=2, echo=True, logprobs=0, max_tokens=1)

    first = text.token_text(served.worker.script[0])
    tokens = ["".join(choice["logprobs"]["tokens"]) for choice in found["choices"]]
    assert tokens == [f"ab{first}"] * 2 + [f"France{first}"] * 2
    assert [choice["text"] for choice in found["choices"]] == tokens


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_tokens": 3}, {"max_tokens": 3, "n": 2}])
async def test_a_stream_says_of_an_echo_what_the_whole_answer_says(served: Served, fields: dict[str, Any]) -> None:
    asked = {"echo": True, "logprobs": 2, "return_token_ids": True, **fields}
    whole = await answer(served, **asked)
    streamed = await frames(served, **asked)

    for index, choice in enumerate(whole["choices"]):
        parts = [one for chunk in streamed for one in chunk["choices"] if one["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        known = [part["logprobs"] for part in parts if part["logprobs"]]
        assert {name: [each for part in known for each in part[name]] for name in known[0]} == choice["logprobs"]
        assert [token for part in parts for token in part.get("token_ids", ())] == choice["token_ids"]
        assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [
            choice["prompt_token_ids"]
        ]
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "length"


async def test_no_output_at_all_is_neither_shown_nor_charged(served: Served) -> None:
    found = await answer(served, max_tokens=0)

    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == ("", "length")
    assert found["usage"]["completion_tokens"] == 0
    assert served.worker.seen[-1].job.max_tokens == 1
    assert await refused(served, CHAT, max_tokens=0) == "max_tokens"


async def test_the_prompts_log_probabilities_in_vllms_form(served: Served) -> None:
    text = text_model(served)
    ids = text.encode(PROMPT)
    found = await answer(served, prompt_logprobs=1, max_tokens=1)
    told = await answer(served, CHAT, prompt_logprobs=0, max_tokens=1)

    [choice] = found["choices"]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1:] == [
        {
            "65": {"logprob": -0.25, "rank": 1, "decoded_token": text.token_text(65)},
            str(token): {"logprob": -0.75, "rank": 2, "decoded_token": text.token_text(token)},
        }
        for token in ids[1:]
    ]
    assert len(told["prompt_logprobs"]) == told["usage"]["prompt_tokens"]
    assert [len(each) for each in told["prompt_logprobs"][1:]] == [1] * (told["usage"]["prompt_tokens"] - 1)


async def test_what_asks_for_too_much_is_refused_by_name(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await refused(served, logprobs=21) == "logprobs"
    assert await refused(served, prompt_logprobs=21) == "prompt_logprobs"
    assert await refused(served, CHAT, prompt_logprobs=1, stream=True) == "prompt_logprobs"
    monkeypatch.setattr(fitting, "MAX_PROMPT_LOGPROBS", 20)
    assert await refused(served, prompt_logprobs=20, prompt=[[1, 2]]) == "prompt_logprobs"
    assert await refused(served, echo=True, logprobs=4, prompt=[[1, 2]], n=3) == "echo"
    assert len((await answer(served, logprobs=20, max_tokens=2))["choices"][0]["logprobs"]["tokens"]) == 2


async def test_ids_are_returned_with_a_chat(served: Served) -> None:
    whole = await answer(served, CHAT, return_token_ids=True)
    streamed = await frames(served, CHAT, return_token_ids=True)

    assert whole["choices"][0]["token_ids"] == [*served.worker.script]
    assert whole["prompt_token_ids"] == [*served.worker.seen[0].job.prompt]
    assert [chunk["prompt_token_ids"] for chunk in streamed if "prompt_token_ids" in chunk] == [
        whole["prompt_token_ids"]
    ]
    choices = [choice for chunk in streamed for choice in chunk["choices"]]
    assert [token for choice in choices for token in choice.get("token_ids", ())] == [*served.worker.script]


async def test_tokens_are_named_by_their_ids_on_request(served: Served) -> None:
    [first, *_] = served.worker.script
    asked: dict[str, Any] = {"max_tokens": 1, "return_tokens_as_token_ids": True}
    found = await answer(served, logprobs=1, **asked)
    told = await answer(served, CHAT, logprobs=True, top_logprobs=1, **asked)

    assert found["choices"][0]["logprobs"]["tokens"] == [f"token_id:{first}"]
    assert [*found["choices"][0]["logprobs"]["top_logprobs"][0]] == [f"token_id:{first}"]
    [content] = told["choices"][0]["logprobs"]["content"]
    assert (content["token"], content["top_logprobs"][0]["token"]) == (f"token_id:{first}",) * 2


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"skip_special_tokens": True, "spaces_between_special_tokens": True}, SAID),
        ({"skip_special_tokens": False}, SAID),
        ({"include_stop_str_in_output": True}, SAID),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, SAID + "<|im_end|>"),
        ({"stop": [" of"]}, "The capital"),
        ({"stop": [" of"], "include_stop_str_in_output": True}, "The capital of"),
        ({"spaces_between_special_tokens": False, "include_stop_str_in_output": False}, SAID),
    ],
)
async def test_special_tokens_and_stops_are_shown_on_request(
    served: Served, path: str, fields: dict[str, Any], said: str
) -> None:
    found = await answer(served, path, **fields)
    streamed = await frames(served, path, **fields)

    def text(choice: dict[str, Any]) -> str:
        message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        return str(message["content"])

    assert text(found["choices"][0]) == said
    choices = [choice for chunk in streamed for choice in chunk["choices"]]
    assert "".join(text(choice) for choice in choices if choice.get("delta") != {}) == said


async def test_special_tokens_before_the_end_are_shown(served: Served) -> None:
    served.worker.say("Paris<|im_start|>is")
    assert (await answer(served))["choices"][0]["text"] == "Parisis"
    assert (await answer(served, skip_special_tokens=False))["choices"][0]["text"] == "Paris<|im_start|>is"


async def test_the_token_that_ended_a_choice_is_shown_on_request_alone(served: Served) -> None:
    text = text_model(served)
    stop = served.worker.script[2]
    before = "".join(map(text.token_text, served.worker.script[:2]))

    assert (await answer(served, stop_token_ids=[stop]))["choices"][0]["text"] == before
    shown = await answer(served, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert shown["choices"][0]["text"] == before + text.token_text(stop)
    assert shown["usage"]["completion_tokens"] == 3


async def test_the_sdk_reads_them(served: Served) -> None:
    async with served.sdk() as client:
        found = await client.completions.create(model="tiny", prompt=PROMPT, echo=True, logprobs=1, max_tokens=0)

    logprobs = found.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == len(text_model(served).encode(PROMPT))

"""Request bodies: what is valid, and the field that is named where one is not."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.neutral import NEUTRAL_CHAT, NEUTRAL_COMPLETION
from fairlane.gateway.dialects.openai.reading import MAX_IGNORED, Reading
from fairlane.gateway.dialects.openai.request_bodies import (
    MAX_CHOICES,
    MAX_SEQUENCES,
    ChatBody,
    CompletionBody,
)
from fairlane.gateway.dialects.openai.requests import ChatRequest, CompletionRequest, Turn
from fairlane.gateway.errors import ApiError
from tests.support.gateway.bodies import CHAT, COMPLETION, MESSAGES, SECRET, chat, completion, param, refused
from tests.support.text_model import of_text

NOT_NUMBERS: list[Any] = ["1", True, [], {}, math.nan, math.inf, -math.inf]
HINTS = ("user", "safety_identifier", "prompt_cache_key")


def test_a_small_chat_has_openais_defaults() -> None:
    assert chat() == ChatRequest(model="tiny", messages=(Turn(role="user", content=SECRET),))


def test_a_small_completion_has_openais_defaults() -> None:
    assert completion() == CompletionRequest(model="tiny", prompts=(SECRET,))


def test_null_is_as_good_as_absent() -> None:
    optional = ChatBody.model_fields.keys() - {"model", "messages"}
    assert chat(**dict.fromkeys(optional | NEUTRAL_CHAT.keys())) == chat()
    optional = CompletionBody.model_fields.keys() - {"model", "prompt"}
    assert completion(**dict.fromkeys(optional | NEUTRAL_COMPLETION.keys())) == completion()


@pytest.mark.parametrize("asked", [{"stop": ""}, {"stop": []}, {"stop": [""]}, {"top_logprobs": 0}])
def test_an_empty_value_is_as_good_as_absent(asked: dict[str, Any]) -> None:
    assert chat(**asked) == chat()


def test_every_field_arrives() -> None:
    asked = chat(
        n=3,
        max_completion_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=-7,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        service_tier="flex",
        deadline_ms=1500,
        metadata={"k": "v"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="p",
        logprobs=True,
        top_logprobs=5,
    )

    assert (asked.n, asked.max_tokens, asked.min_tokens, asked.ignore_eos) == (3, 9, 2, True)
    assert (asked.stop, asked.stream, asked.include_usage) == (("a", "b"), True, True)
    assert (asked.service_tier, asked.deadline_ms, asked.seed, asked.logprobs) == ("flex", 1500.0, -7, 5)
    sampling = asked.sampling(seed=11, eos=(2,))
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 4, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, -2.0, 2.0)
    assert (sampling.seed, sampling.min_tokens, sampling.stop_token_ids, sampling.logprobs) == (11, 2, (), 5)


def test_the_models_own_ends_hold_unless_they_are_ignored() -> None:
    assert chat().sampling(seed=0, eos=(2, 3)).stop_token_ids == (2, 3)
    assert chat(ignore_eos=True).sampling(seed=0, eos=(2, 3)).stop_token_ids == ()


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_any_seed_of_64_bits_becomes_one_of_63(seed: int) -> None:
    assert 0 <= chat(seed=seed).sampling(seed=seed, eos=()).seed < 2**63


def test_a_nucleus_of_no_mass_is_the_likeliest_token() -> None:
    sampling = chat(top_p=0, top_k=9).sampling(seed=0, eos=())

    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


def test_vllms_way_to_say_all_tokens() -> None:
    assert chat(top_k=-1) == chat(top_k=0)
    assert chat(top_k=-1).sampling(seed=0, eos=()).top_k == 0


def test_logprobs_of_chat() -> None:
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).logprobs == 20
    assert chat(logprobs=False).logprobs is None
    assert param(top_logprobs=3) == "top_logprobs"
    assert param(logprobs=False, top_logprobs=3) == "top_logprobs"
    assert param(logprobs=True, top_logprobs=21) == "top_logprobs"
    assert param(logprobs=1) == "logprobs"


def test_logprobs_of_completions() -> None:
    assert [completion(logprobs=k).logprobs for k in (0, 20)] == [0, 20]
    for wrong in (21, -1, True):
        assert refused({**COMPLETION, "logprobs": wrong}, by_completion=True).param == "logprobs"


OUT_OF_RANGE: dict[str, list[Any]] = {
    "n": [0, -1, MAX_CHOICES + 1, 1.5, 10**400],
    "max_tokens": [0, -1, 2**63, 1.5],
    "max_completion_tokens": [0, -1, 2**63, 1.5],
    "min_tokens": [-1, 1.5],
    "temperature": [-0.1, 2.1, 10**400],
    "top_p": [-0.1, 1.1],
    "top_k": [-2, 2**31, 1.5],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0, -1, 0.009, 1e-300, 10.1],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "seed": [2**63, -(2**63) - 1, 1.5],
    "deadline_ms": [0, -1, 1e300],
}


@pytest.mark.parametrize("field", OUT_OF_RANGE)
def test_numbers_out_of_range_are_named(field: str) -> None:
    for value in OUT_OF_RANGE[field] + NOT_NUMBERS:
        assert param(**{field: value}) == field


@pytest.mark.parametrize("field", ["temperature", "n", "deadline_ms", "seed"])
@pytest.mark.parametrize("written", ["1e309", "-1e309", "NaN", "Infinity", "-Infinity", "1" + "0" * 5000])
def test_numbers_that_are_none_are_named(field: str, written: str) -> None:
    body = json.dumps({**CHAT, field: 0}).replace(f'"{field}": 0', f'"{field}": {written}').encode()

    assert refused(body).param == field


def test_absurd_numbers_elsewhere_are_named_too() -> None:
    assert param(foo=math.nan) == "foo"
    assert refused(b'{"model": "m", "prompt": [1, ' + b"9" * 5000 + b"]}", by_completion=True).param == "prompt"


@pytest.mark.parametrize("field", ["stream", "ignore_eos"])
@pytest.mark.parametrize("value", [1, "true", []])
def test_truth_is_true_or_false(field: str, value: object) -> None:
    assert param(**{field: value}) == field


@pytest.mark.parametrize("field", ["foo", "top_a", "best_of", "suffix", "guided"])
def test_unknown_fields_are_named(field: str) -> None:
    error = refused({**CHAT, field: None})

    assert error.param == field
    assert "not a field" in error.message


def test_an_unknown_name_is_told_only_in_part() -> None:
    named = param(**{"x" * 1000: 1})

    assert named == "x" * 64 + "…"
    assert param(**{"a\nb\x00": 1}) == "a?b?"


OPENAIS = CompletionCreateParamsBase.__annotations__.keys()
UNSUPPORTED: dict[str, list[Any]] = {
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "modalities": [["text", "audio"], ["audio"]],
    "moderation": [True],
    "web_search_options": [{"search_context_size": "low"}],
}


IGNORED: dict[str, Any] = {
    "prompt_cache_options": {"ttl": "24h"},
    "prompt_cache_retention": "1h",
    "metadata": {"depth": {"of": ["any"]}},
    "prediction": {"type": "content", "content": SECRET},
    "prompt_cache_key": 5,
    "safety_identifier": "someone",
    "user": "someone",
    "priority": 5,
    "store": True,
    "verbosity": "low",
    "unknown": 1,
}


def read_chat(reading: Reading, **fields: Any) -> Reading:
    of_text(parse_chat(json.dumps({**CHAT, **fields}).encode(), reading), reading)
    return reading


def test_a_hint_is_ignored_and_named_by_its_path() -> None:
    turns = [{"role": "user", "content": "Hi", "timestamp": number} for number in (5, 6)]

    assert sorted(read_chat(Reading(), **IGNORED, messages=turns).ignored) == sorted([*IGNORED, "messages.timestamp"])


def test_a_name_that_no_header_can_hold_is_replaced_in_part() -> None:
    assert read_chat(Reading(), **{"a\r\nb: \u00e9": 1}).ignored == ["a??b???"]
    assert read_chat(Reading(), **{"x" * 1000: 1}).ignored == ["x" * 64]


def test_what_is_null_or_empty_asks_for_nothing() -> None:
    nothing: tuple[Any, ...] = (None, "", [], {})
    for value in nothing:
        asked = dict.fromkeys(["unknown", *NEUTRAL_CHAT], value)
        assert read_chat(Reading(refuses_unknown=True), **asked).ignored == []


def test_few_ignored_fields_are_named() -> None:
    assert len(read_chat(Reading(), **{f"field{number}": 1 for number in range(100)}).ignored) == MAX_IGNORED


def test_unknown_fields_are_refused_where_that_is_asked() -> None:
    with pytest.raises(ApiError) as error:
        read_chat(Reading(refuses_unknown=True), messages=[{"role": "user", "content": "Hi", "at": 5}])

    assert (error.value.code, error.value.param) == ("invalid_request_error", "messages.[0].at")


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_what_is_not_supported_yet_is_named(field: str) -> None:
    for value in UNSUPPORTED[field]:
        error = refused({**CHAT, field: value})
        assert error.param == field
        assert "not supported yet" in error.message


def test_every_unsupported_field_is_tested() -> None:
    assert {field for field in NEUTRAL_CHAT if field in OPENAIS} == UNSUPPORTED.keys() | (IGNORED.keys() & OPENAIS)


@pytest.mark.parametrize("field", NEUTRAL_CHAT)
def test_what_is_not_supported_yet_is_accepted_where_it_asks_for_nothing(field: str) -> None:
    for value in NEUTRAL_CHAT[field]:
        assert chat(**{field: value}) == chat()


def test_best_of_as_many_as_n_asks_for_nothing() -> None:
    assert completion(n=3, best_of=3).n == 3


def test_two_ways_to_bound_the_output_have_to_agree() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert chat(max_tokens=5).max_tokens == chat(max_completion_tokens=5).max_tokens == 5
    assert param(max_tokens=5, max_completion_tokens=6) == "max_tokens"


def test_the_least_output_is_at_most_the_most() -> None:
    assert chat(min_tokens=5, max_tokens=5).min_tokens == 5
    assert param(min_tokens=6, max_tokens=5) == "min_tokens"


@pytest.mark.parametrize("stop", [["a"] * 17, ["a", 1], 1, {}, "x" * 1025, "\ud800"])
def test_stop_strings_that_are_none(stop: object) -> None:
    assert param(stop=stop) == "stop"


def test_stop_strings() -> None:
    assert chat(stop="a").stop == ("a",)
    assert chat(stop=["a", "b", "c", "d"]).stop == ("a", "b", "c", "d")
    assert chat(stop=[]).stop == ()


@pytest.mark.parametrize("tier", ["gold", 1, "Priority"])
def test_unknown_tiers_are_named(tier: object) -> None:
    assert param(service_tier=tier) == "service_tier"


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "scale", "priority", "fast"])
def test_openais_tiers_pass(tier: str) -> None:
    assert chat(service_tier=tier).service_tier == tier


def test_stream_options_belong_to_streams() -> None:
    assert not chat(stream=True).include_usage
    assert not chat(stream_options={"include_usage": False}).include_usage
    assert param(stream_options={"include_usage": True}) == "stream_options"
    assert param(stream=True, stream_options={"foo": 1}) == "stream_options.foo"
    assert param(stream=True, stream_options={"include_usage": "yes"}) == "stream_options.include_usage"


@pytest.mark.parametrize("model", [None, "", 1, "x" * 513])
def test_the_model_is_named(model: object) -> None:
    assert param(model=model) == "model"


def test_what_is_required_is_named() -> None:
    assert refused({"messages": MESSAGES}).param == "model"
    assert refused({"model": "tiny"}).param == "messages"
    assert refused({"model": "tiny"}, by_completion=True).param == "prompt"


def test_a_wrong_field_goes_before_a_missing_one() -> None:
    assert refused({"temperature": 3}).param == "temperature"


MESSAGES_AT_FAULT: dict[str, tuple[Any, str]] = {
    "none": ([], "messages"),
    "no list": (SECRET, "messages"),
    "no object": ([SECRET], "messages.[0]"),
    "no role": ([{"content": SECRET}], "messages.[0].role"),
    "no content": ([{"role": "user"}], "messages.[0].content"),
    "unknown role": ([*MESSAGES, {"role": SECRET, "content": SECRET}], "messages.[1].role"),
    "number": ([{"role": "user", "content": 5}], "messages.[0].content"),
    "lone surrogate": ([{"role": "user", "content": SECRET + "\ud800"}], "messages.[0].content"),
    "an object": ([{"role": "user", "content": {}}], "messages.[0].content"),
    "image": ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.[0].content"),
    "part of text": ([{"role": "user", "content": [[SECRET]]}], "messages.[0].content.[0]"),
    "part with more": (
        [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}],
        "messages.[0].content.[0].x",
    ),
    "part without": ([{"role": "user", "content": [{"type": "text"}]}], "messages.[0].content.[0]"),
    "part of number": ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages.[0].content.[0].text"),
    "surrogate in a part": (
        [{"role": "user", "content": [{"type": "text", "text": "\udc00"}]}],
        "messages.[0].content.[0].text",
    ),
    "surrogate in thinking": (
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": [{"text": "\udc00"}]}]}],
        "messages.[0].content.[0].thinking",
    ),
    "audio without words": ([{"role": "assistant", "audio": {"id": "audio_1"}}], "messages.[0].audio"),
    "thinking of a user": ([{"role": "user", "content": [{"type": "thinking"}]}], "messages.[0].content"),
    "unknown field": ([{"role": "user", "content": "", "weight": 1}], "messages.[0].weight"),
    "long name": ([{"role": "user", "content": "", "name": "x" * 513}], "messages.[0].name"),
}


@pytest.mark.parametrize("case", MESSAGES_AT_FAULT)
def test_messages_at_fault_are_named(case: str) -> None:
    messages, named = MESSAGES_AT_FAULT[case]

    assert param(messages=messages) == named


def test_messages_as_the_sdk_sends_them_back() -> None:
    asked = chat(
        messages=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {
                "role": "assistant",
                "content": "c",
                "refusal": None,
                "annotations": [],
                "tool_calls": None,
                "audio": None,
            },
            {"role": "tool", "content": "", "tool_call_id": "t"},
        ]
    )

    assert asked.messages == (
        Turn(role="developer", content="Be kind."),
        Turn(role="user", content="a\nb", name="Ann"),
        Turn(role="assistant", content="c"),
        Turn(role="tool", content="", tool_call_id="t"),
    )


def test_a_message_as_litellm_sends_it_back() -> None:
    message = {"role": "assistant", "content": "c", "provider_specific_fields": {"refusal": None}}

    assert chat(messages=[message]).messages == (Turn(role="assistant", content="c"),)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [0]], ("a", (0,))),
    ],
)
def test_prompts_come_as_text_or_ids_one_or_many(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    ["", [], [""], [[]], [1, "a"], [True], [-1], [2**31], [1.5], [[1], [True]], None, 5, {}, "\ud800", ["\udfff"]],
    ids=str,
)
def test_prompts_that_are_none_are_named(prompt: object) -> None:
    assert refused({**COMPLETION, "prompt": prompt}, by_completion=True).param == "prompt"


def test_prompts_times_choices_are_bounded() -> None:
    assert len(completion(prompt=["a"] * (MAX_SEQUENCES // 2), n=2).prompts) * 2 == MAX_SEQUENCES
    assert refused({**COMPLETION, "prompt": ["a"] * (MAX_SEQUENCES + 1)}, by_completion=True).param == "prompt"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(ChatBody.model_fields.keys() | NEUTRAL_CHAT.keys())


@given(field=st.sampled_from(FIELDS), value=values)
@settings(max_examples=300)
def test_any_value_of_any_field_is_valid_or_named(field: str, value: object) -> None:
    try:
        chat(**{field: value})
    except ApiError as error:
        named = error.param
    else:
        named = field

    assert named is not None
    assert named.split(".")[0] == field


def test_reprs_show_no_content() -> None:
    asked = chat(stop=[SECRET[:9]])

    assert SECRET[:9] not in repr(asked)
    assert SECRET not in repr(asked.messages)
    assert SECRET not in repr(completion())


def test_openapi_can_show_the_bodies() -> None:
    assert "messages" in ChatBody.model_json_schema()["properties"]
    assert "prompt" in CompletionBody.model_json_schema()["properties"]

"""Tokens to text and back, over real tokenizers of both families."""

import asyncio
import codecs
import json
import random
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.model_text.tokenizer import PromptTooLong, TextModel
from fairlane.scheduler.protocol.messages import ModelCard
from tests.support.counted import bytecodes
from tests.support.gateway.cards import CHATML, SPECIAL, byte_level_card, metaspace_card
from tests.support.gateway.tool_models import tool_card

BYTES = TextModel(byte_level_card())
PIECES = TextModel(metaspace_card())
TOKENIZERS = {id(model): Tokenizer.from_str(model.card.tokenizer_json) for model in (BYTES, PIECES)}
STOPS = ["\n", "END", "is", "ais Par", "é", "🙂", "a", "aa", "the capital of Spain"]

tokens = st.lists(st.integers(0, BYTES.card.vocab_size + 2), max_size=40)
texts = st.text(alphabet=st.sampled_from("aeé is🙂\nENDPr,你\u200d"), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=8)


def whole(model: TextModel, ids: list[int]) -> str:
    text: str = TOKENIZERS[id(model)].decode(ids, skip_special_tokens=True)
    return text


def complete(ids: list[int]) -> str:
    """The text of byte-level tokens, without a character that their end cuts in half."""
    special = (BYTES.card.eos_token_ids[0], *(TOKENIZERS[id(BYTES)].token_to_id(name) for name in SPECIAL))
    spelled = b"".join(BYTES.token_bytes(token) for token in ids if token not in special)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(spelled)


def pushes(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(edges)]


def streamed(stream: TokenStream, parts: list[list[int]]) -> tuple[str, int, bool]:
    """All the text of a stream, the tokens counted, and whether it stopped."""
    pieces = [*(stream.push(part) for part in parts), stream.flush()]
    return "".join(piece.text for piece in pieces), pieces[-1].counted, pieces[-1].stopped


@given(ids=tokens, cuts=cuts)
@settings(max_examples=150)
def test_byte_level_text_is_what_the_tokenizer_decodes_however_it_is_split(ids: list[int], cuts: list[int]) -> None:
    assert streamed(TokenStream(BYTES), pushes(ids, cuts)) == (complete(ids), len(ids), False)
    assert whole(BYTES, ids).startswith(complete(ids))


@given(text=texts, cuts=cuts)
@settings(max_examples=100)
def test_text_in_pieces_is_what_the_tokenizer_decodes_however_it_is_split(text: str, cuts: list[int]) -> None:
    ids = list(PIECES.encode(text))

    assert streamed(TokenStream(PIECES), pushes(ids, cuts))[0] == whole(PIECES, ids)


@given(ids=st.lists(st.integers(0, PIECES.card.vocab_size + 2), max_size=40), cuts=cuts)
@settings(max_examples=100)
def test_bytes_that_are_no_character_do_not_disturb_the_text_around_them(ids: list[int], cuts: list[int]) -> None:
    one_by_one = streamed(TokenStream(PIECES), [[token] for token in ids])

    assert streamed(TokenStream(PIECES), pushes(ids, cuts)) == one_by_one
    if "\ufffd" not in whole(PIECES, ids):
        assert one_by_one[0] == whole(PIECES, ids)


@given(ids=tokens)
@settings(max_examples=100)
def test_half_a_character_is_held_back(ids: list[int]) -> None:
    stream = TokenStream(BYTES)
    expected = whole(BYTES, ids)

    said = ""
    for token in ids:
        said += stream.push([token]).text
        assert expected.startswith(said)


@given(text=texts, stop=st.lists(st.sampled_from(STOPS), min_size=1, max_size=4), cuts=cuts)
@settings(max_examples=200)
def test_stop_strings_end_the_text_at_the_same_token_however_it_is_split(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    ids = list(BYTES.encode(text))
    said, counted, stopped = streamed(TokenStream(BYTES, stop), pushes(ids, cuts))

    ends = [len(whole(BYTES, ids[: index + 1]).rstrip("\ufffd")) for index in range(len(ids))]
    completed = [text.find(one) + len(one) for one in stop if one in text]
    assert stopped == bool(completed)
    assert not any(one in said for one in stop)
    if not completed:
        assert (said, counted) == (text, len(ids))
        return
    first = min(completed)
    longest = max(len(one) for one in stop if text[:first].endswith(one))
    assert said == text[: first - longest]
    assert counted == 1 + next(index for index, end in enumerate(ends) if end >= first)


@given(text=texts, stop=st.lists(st.sampled_from(STOPS), min_size=1, max_size=4))
@settings(max_examples=100)
def test_nothing_that_could_begin_a_stop_string_is_given_out(text: str, stop: list[str]) -> None:
    stream = TokenStream(BYTES, stop)
    ids = BYTES.encode(text)
    said = ""
    for count, token in enumerate(ids, start=1):
        piece = stream.push([token])
        said += piece.text
        if piece.stopped:
            break
        seen = whole(BYTES, list(ids[:count])).rstrip("\ufffd")
        begun = max((length for one in stop for length in range(len(one)) if seen.endswith(one[:length])), default=0)
        assert said == seen[: len(seen) - begun]


def test_after_a_stop_nothing_is_said_or_counted() -> None:
    stream = TokenStream(BYTES, ["END"])
    ids = BYTES.encode("aENDa")

    stopped = stream.push(ids)

    assert (stopped.text, stopped.stopped) == ("a", True)
    assert stopped.counted == len(ids) - 1
    assert (stream.push(ids), stream.flush()) == (stream.flush(), stream.push(ids))
    assert stream.flush().counted == stopped.counted


def test_stop_strings_do_not_count_before_the_least_number_of_tokens() -> None:
    ids = BYTES.encode("is is is")
    stream = TokenStream(BYTES, ["is"], min_tokens=len(BYTES.encode("is")))

    assert streamed(stream, [list(ids)]) == ("is ", len(BYTES.encode("is is")), True)


@pytest.mark.parametrize("stop", [(), ("never",), ("nothing 🚀",)])
@pytest.mark.parametrize("model", [BYTES, PIECES])
def test_a_character_that_the_end_cuts_is_dropped(model: TextModel, stop: tuple[str, ...]) -> None:
    ids = list(model.encode("nothing 🚀"))[:-1]

    assert streamed(TokenStream(model, stop), [[token] for token in ids]) == ("nothing ", len(ids), False)


def test_special_tokens_are_counted_and_not_shown() -> None:
    ids = [*BYTES.encode("Par"), BYTES.card.eos_token_ids[0]]

    assert streamed(TokenStream(BYTES), [ids]) == ("Par", len(ids), False)


def test_the_repr_of_a_piece_shows_no_text() -> None:
    assert "secret" not in repr(TokenStream(BYTES).push(BYTES.encode("secret")))


def test_a_long_stream_of_halves_of_characters_costs_the_same_per_token() -> None:
    half = BYTES.encode("🙂")[0]
    stream = TokenStream(BYTES, ["never"])

    longest = max(len(stream.push([half]).text) for _ in range(5_000))

    assert longest <= 2  # each token settles its predecessor: nothing piles up


@pytest.mark.parametrize("model", [BYTES, PIECES])
def test_each_token_alone_has_text_and_bytes(model: TextModel) -> None:
    for token in range(model.card.vocab_size):
        assert model.token_text(token) == model.token_bytes(token).decode("utf-8", "replace")
    assert model.token_text(model.card.eos_token_ids[0]) == "<|im_end|>"
    assert model.token_bytes(model.card.vocab_size + 7) == b""


@pytest.mark.parametrize("model", [BYTES, PIECES])
def test_the_bytes_of_a_texts_tokens_are_the_text(model: TextModel) -> None:
    text = "The capital: Köln 🙂\n"

    assert b"".join(map(model.token_bytes, model.encode(text))).decode().removeprefix(" ") == text


def test_a_conversation_becomes_the_prompt_that_the_template_writes() -> None:
    prompt = BYTES.chat_prompt([Turn(role="developer", content="Be kind."), Turn(role="user", content="Hi 🙂")])

    expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi 🙂<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZERS[id(BYTES)].decode(list(prompt), skip_special_tokens=False) == expected
    assert prompt[0] == TOKENIZERS[id(BYTES)].token_to_id("<|im_start|>")


def test_a_model_without_a_template_serves_no_chat() -> None:
    with pytest.raises(ApiError) as refused:
        PIECES.chat_prompt([Turn(role="user", content="secret")])

    assert (refused.value.code, refused.value.param) == ("invalid_request_error", "messages")
    assert PIECES.template_problem == "it has no chat template"


def test_a_broken_template_costs_only_chat() -> None:
    model = TextModel(byte_level_card("{% for %}"))

    assert model.encode("Par")
    assert model.template_problem == "the chat template cannot be compiled (TemplateSyntaxError)"
    with pytest.raises(ApiError, match="no usable chat template"):
        model.chat_prompt([Turn(role="user", content="hi")])


def test_what_the_template_refuses_is_told_without_content() -> None:
    model = TextModel(byte_level_card(CHATML + "{{ raise_exception('Roles must alternate') }}"))

    with pytest.raises(ApiError, match="rejects the messages: Roles must alternate") as refused:
        model.chat_prompt([Turn(role="user", content="secret")])

    assert refused.value.__context__ is None  # a logged traceback would show the template's frame and values


def test_token_ids_of_a_prompt_have_to_be_in_the_vocabulary() -> None:
    assert BYTES.prompt((0, BYTES.card.vocab_size - 1)) == (0, BYTES.card.vocab_size - 1)
    assert BYTES.prompt("Par") == BYTES.encode("Par")
    with pytest.raises(ApiError) as refused:
        BYTES.prompt((BYTES.card.vocab_size,))
    assert refused.value.param == "prompt"


def test_a_card_whose_tokenizer_cannot_be_read_is_refused() -> None:
    card = ModelCard(
        model="m", tokenizer_json="{}", chat_template=None, context_length=8, vocab_size=8, eos_token_ids=()
    )

    with pytest.raises(ValueError, match="model card 'm'"):
        TextModel(card)


def test_random_text_survives_the_way_there_and_back() -> None:
    letters = random.Random(7)
    text = "".join(
        chr(letters.choice((letters.randrange(32, 127), letters.randrange(0xA0, 0x3000)))) for _ in range(500)
    )

    assert streamed(TokenStream(BYTES), [[token] for token in BYTES.encode(text)])[0] == text


@pytest.mark.parametrize("model", [BYTES, PIECES])
@given(text=texts)
@settings(max_examples=50)
def test_a_text_has_the_tokens_that_its_tokenizer_finds(model: TextModel, text: str) -> None:
    assert model.encode(text) == tuple(TOKENIZERS[id(model)].encode(text).ids)


@pytest.mark.anyio
async def test_a_long_text_holds_up_nobody_while_it_is_tokenised() -> None:
    letters = random.Random(7)
    text = "".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=1_000_000))
    started_s, longest_s = time.perf_counter(), 0.0

    tokenising = asyncio.create_task(asyncio.to_thread(PIECES.encode, text))
    while not tokenising.done():
        before_s = time.perf_counter()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.perf_counter() - before_s)

    assert len(tokenising.result()) > 100_000
    assert longest_s < (time.perf_counter() - started_s) / 2


def longest_token(model: TextModel) -> int:
    return max(len(model.token_bytes(token)) for token in range(model.card.vocab_size))


def test_what_no_context_could_hold_is_not_tokenised() -> None:
    most = "x" * (longest_token(BYTES) * (BYTES.card.context_length + 1))

    assert BYTES.encode(most[:-1])
    with pytest.raises(PromptTooLong) as refused:
        BYTES.encode(most)
    assert refused.value.least_tokens == BYTES.card.context_length + 1 <= len(TOKENIZERS[id(BYTES)].encode(most).ids)


WRITTEN = json.loads(byte_level_card().tokenizer_json)


def changed(**parts: Any) -> TextModel:
    """The byte-level model with parts of its tokenizer replaced."""
    return TextModel(replace(byte_level_card(), tokenizer_json=json.dumps({**WRITTEN, **parts})))


def lacking(character: str) -> dict[str, Any]:
    """The vocabulary without one of its characters."""
    known = WRITTEN["model"]["vocab"].items()
    return {**WRITTEN["model"], "vocab": {token: number for token, number in known if token != character}}


COMPOSING = changed(normalizer={"type": "NFC"})
TILDELESS = changed(model=lacking("~"))
RICH = [
    "The capital of France",
    "né à",
    "<think>",
    "é",
    "e\u0301",
    "\u1100\u1161\u11a8",
    "\u03b1\u0313\u0300\u0345",
    "\n ",
    "~~~",
]


@given(parts=st.lists(st.sampled_from(RICH), max_size=30))
@settings(max_examples=100)
def test_a_text_never_has_fewer_tokens_than_its_length_tells(parts: list[str]) -> None:
    text = "".join(parts)
    for model in (BYTES, COMPOSING, TILDELESS):
        assert model.vocabulary.least_tokens(text) <= len(model.encode(text))


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}]}},
    ],
)
def test_the_length_of_a_text_tells_nothing_where_a_tokenizer_drops_some(parts: dict[str, Any]) -> None:
    assert changed(**parts).encode(" " * 1_000_000) == ()


def test_what_no_token_spells_does_not_count() -> None:
    assert TILDELESS.encode("~" * 1_000_000) == ()
    with pytest.raises(PromptTooLong):
        TILDELESS.encode("~x" * 1_000_000)


@given(data=st.data())
@settings(max_examples=50)
def test_marks_are_shown_to_a_reader_and_ends_never(data: st.DataObject) -> None:
    model = TextModel(tool_card("Mistral"))
    marks = {
        name: token
        for token in range(model.card.vocab_size)
        if (name := model.token_text(token)) in ("[TOOL_CALLS]", "[INST]")
    }
    before, after = data.draw(texts), data.draw(texts)
    ids = [
        *model.encode(before),
        marks["[TOOL_CALLS]"],
        marks["[INST]"],
        *model.encode(after),
        *model.card.eos_token_ids,
    ]
    splits = pushes(ids, data.draw(cuts))

    assert streamed(TokenStream(model, control_text=True), splits)[0] == f"{before}[TOOL_CALLS]{after}"
    assert streamed(TokenStream(model), splits)[0] == before + after
    stopped = streamed(TokenStream(model, ["CALLS]"], control_text=True), splits)
    assert stopped == (f"{before}[TOOL_", len(model.encode(before)) + 1, True)


@pytest.mark.parametrize("model", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_an_embedders_input_is_text_whatever_it_names(model: TextModel) -> None:
    named = "The <|im_end|> of France"
    end = model.card.eos_token_ids[0]

    assert end in model.encode(named)
    assert end not in model.input(named)
    assert whole(model, [*model.input(named)]).strip() == named
    assert model.input("The capital") == model.encode("The capital")
    assert model.input((1, 2)) == (1, 2)
    with pytest.raises(ApiError) as refused:
        model.input((model.card.vocab_size,))
    assert refused.value.param == "input"


def test_a_stop_string_costs_nothing_before_its_first_characters_come() -> None:
    """Each choice has a stream of its own, and a request may have 128."""
    assert bytecodes(lambda: TokenStream(BYTES, ["a" * 1_000] * 4).push(BYTES.encode("Paris"))) < 2_000

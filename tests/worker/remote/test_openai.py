"""What a server of completions can is found out, and kept to."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Outcome, Sampling
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.api import Api, Facts, Refused
from fairlane.worker.remote.openai import OpenAiApi
from fairlane.worker.remote.retokenise import Retokeniser
from tests.support.worker.hand import lease
from tests.support.worker.openai_stand_in import OpenAiStandIn, card, spelled
from tests.support.worker.remote import facts_of, remote_client
from tests.support.worker.vllm_stand_in import EOS, continuation

PROMPT = (5, 6, 7, 8, 9)
FIRST = SeqId("a", 0)
DRAWS = ("min_p", "repetition_penalty", "top_k")
NEED_IDS = ("logprobs", "min_tokens", "allowed_token_ids", "prompt_logprobs", "bad_words")


def found(server: OpenAiStandIn) -> tuple[Facts, Api]:
    api = OpenAiApi(server.url, None)
    return facts_of(api), api.serving(card())


@pytest.mark.parametrize(
    ("owner", "is_exact", "lacks", "length", "sequences"),
    [
        ("vllm", True, ("bad_words",), None, None),
        ("llamacpp", False, ("cache_salt", *NEED_IDS, "stop_token_ids"), 128, 8),
        ("ollama", False, ("cache_salt", "ignore_eos", *NEED_IDS, *DRAWS, "stop_token_ids"), None, None),
        ("strict", False, ("cache_salt", "ignore_eos", *NEED_IDS, *DRAWS, "stop_token_ids"), None, None),
    ],
)
def test_what_a_server_can(
    owner: str, is_exact: bool, lacks: tuple[str, ...], length: int | None, sequences: int | None
) -> None:
    with OpenAiStandIn(owner=owner) as server:
        facts, _ = found(server)

    assert (facts.version, facts.is_exact, facts.context_length) == (owner, is_exact, length)
    assert (facts.lacks, facts.sequences) == (tuple(sorted(lacks)), sequences)


def test_a_server_is_told_no_field_that_it_does_not_take() -> None:
    """The stand-in refuses every field beyond OpenAI's."""
    with OpenAiStandIn(owner="strict") as server, remote_client(server, api=found(server)[1]) as client:
        sampling = Sampling(temperature=0.5, presence_penalty=1.0, logit_bias=((5, 1.0),), stop_token_ids=(EOS,))
        client.add(lease("a", PROMPT, max_tokens=4, sampling=sampling))
        client.run()

        [body] = server.asked
        assert client.ends["a"].outcome is Outcome.FINISHED
        assert (body["prompt"], body["presence_penalty"], body["logit_bias"]) == (spelled(PROMPT), 1.0, {"5": 1.0})


def test_llama_cpp_is_told_what_its_defaults_would_change() -> None:
    with OpenAiStandIn(owner="llamacpp") as server, remote_client(server, api=found(server)[1]) as client:
        client.add(lease("a", PROMPT, max_tokens=4, sampling=Sampling(seed=2**62 + 7, repetition_penalty=1.5)))
        client.run()

        [body] = server.asked
        assert body["prompt"] == [*PROMPT]
        assert (body["top_k"], body["min_p"], body["repeat_penalty"], body["seed"]) == (0, 0.0, 1.5, 7)


@pytest.mark.parametrize("owner", ["llamacpp", "strict"])
def test_text_that_comes_many_tokens_at_once_is_told_token_by_token(owner: str) -> None:
    with (
        OpenAiStandIn(owner=owner, per_chunk=3) as server,
        remote_client(server, api=found(server)[1]) as client,
    ):
        client.add(lease("a", PROMPT, max_tokens=10))
        client.run()

        assert client.tokens[FIRST] == continuation(PROMPT, 10)
        assert len(server.asked) == 1


def byte_level() -> Retokeniser:
    """As of most models: bytes, one merge, and a control token that is called `<end>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(alphabet)} | {"he": len(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False), AddedToken("<s>", special=True)])
    return Retokeniser(msgspec.structs.replace(card(), tokenizer_json=tokenizer.to_str(), bos_token="<s>"))


def spaced() -> Retokeniser:
    """As of models whose tokenizer puts a space before a text."""
    pieces = ["▁he", "▁", "he", "▁you", "llo", "\n", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0 - place / 100) for place, piece in enumerate(pieces)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return Retokeniser(msgspec.structs.replace(card(), tokenizer_json=tokenizer.to_str()))


@pytest.mark.parametrize("make", [byte_level, spaced])
def test_pieces_of_text_become_tokens_that_spell_them(make: Callable[[], Retokeniser]) -> None:
    model = make()
    said, text = model.encode("he"), ""
    for piece in ("llo", " he", "llo", " you"):
        said += model.tokens(said, piece)
        text += piece

    assert model.decode(said) == "he" + text


def test_half_a_character_is_never_made_of_a_whole_one() -> None:
    model = byte_level()

    assert model.decode(model.tokens(model.encode("he"), " 😁he")) == " 😁he"
    assert model.tokens(model.encode("he"), "") == []


def test_text_that_names_a_control_token_is_not_sent_as_one() -> None:
    """A server that takes text alone would end the user's turn where the user says so."""
    model = byte_level()
    [end] = model.encode("<end>")
    spelled_out = [*model.encode("<en"), *model.encode("d>")]

    assert model.prompt([*model.encode("he"), end], server_adds_mark=False) == "he<end>"
    with pytest.raises(Refused, match="control tokens"):
        model.prompt(spelled_out, server_adds_mark=False)


def test_a_mark_that_the_server_puts_before_a_text_is_left_to_it() -> None:
    model = byte_level()
    prompt = [*model.encode("<s>"), *model.encode("he")]

    assert model.prompt(prompt, server_adds_mark=True) == "he"
    assert model.prompt(prompt, server_adds_mark=False) == "<s>he"


def test_a_trial_is_repeated_when_a_server_comes_back() -> None:
    with OpenAiStandIn(owner="vllm") as server:
        _, api = found(server)

        async def looked() -> bool:
            was_up = await api.is_up()
            server.owner = "strict"
            with pytest.raises(EngineError, match=r"not what it was"):
                await api.is_up()
            await api.close()
            return was_up

        assert asyncio.run(looked())
        assert len(server.tried) > 2

"""Answers with a form before a server: it keeps to the grammar, and a resumed answer is the one that was begun."""

import llguidance
import msgspec
import pytest

from fairlane.gateway.dialects.grammar.check_process import Check
from fairlane.gateway.dialects.grammar.structure import Structure, StructureKind
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Lease, Outcome, Paused, Sampling
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote.api import EngineUnavailable
from fairlane.worker.remote.lark import as_lark
from fairlane.worker.remote.vllm import VllmApi
from tests.support.worker.hand import lease
from tests.support.worker.remote import facts_of, remote_client
from tests.support.worker.vllm_stand_in import EOS, VllmStandIn

PROMPT = (5, 6, 7)
LISTED = [11, 12, 13, 14, 15, 16, 17, 18]
FIRST = SeqId("a", 0)


def listed(*, granted: int = 20, generated: tuple[tuple[int, ...], ...] = ()) -> Lease:
    """A job whose answer has to be `LISTED`."""
    one = lease("a", PROMPT, max_tokens=20, sampling=Sampling(seed=7, stop_token_ids=(EOS,)), generated=generated)
    grammar = "start: " + " ".join(f"<[{token}]>" for token in LISTED)
    job = msgspec.structs.replace(one.job, grammar=grammar, granted_until=granted)
    return msgspec.structs.replace(one, job=job)


@pytest.mark.parametrize(
    ("grammars", "takes", "resumes"),
    [
        ("none", False, False),
        ("ignored", False, False),
        ("failed", False, False),
        ("anew", True, False),
        ("resumed", True, True),
    ],
)
def test_what_the_server_makes_of_grammars_is_tried(grammars: str, takes: bool, resumes: bool) -> None:
    with VllmStandIn(grammars=grammars) as server:
        found = facts_of(VllmApi(server.url, None))

    assert (found.takes_grammars, found.resumes_grammars) == (takes, resumes)


def test_a_trial_that_a_restart_cuts_says_nothing_of_grammars() -> None:
    with VllmStandIn(grammars="resumed", lies="cut", lies_from=1) as server:

        class Restarting(list[dict[str, object]]):
            """The server is another process before it answers."""

            def append(self, body: dict[str, object]) -> None:
                server.started_s += 1.0

        server.asked = Restarting()
        with pytest.raises(EngineUnavailable):
            facts_of(VllmApi(server.url, None))


@pytest.mark.parametrize("resumes", [False, True])
def test_a_choice_that_pauses_goes_on_with_its_grammar(resumes: bool) -> None:
    kind = "resumed" if resumes else "anew"
    with VllmStandIn(grammars=kind) as server, remote_client(server, resumes_grammars=resumes) as client:
        client.add(listed(granted=3))
        client.until(lambda: any(isinstance(event, Paused) for event in client.events))
        assert client.tokens[FIRST] == LISTED[:3]

        client.engine.grant("a", 20)
        client.run()

        assert client.tokens[FIRST] == [*LISTED, EOS]
        asked = [(len(body["token_ids"]), body["sampling_params"]["max_tokens"]) for body in server.asked]
        assert asked == [(3, 20), (6, 17) if resumes else (3, 20)]


def test_a_choice_that_others_began_says_again_what_they_published_with_the_same_seed() -> None:
    with VllmStandIn(grammars="anew") as server, remote_client(server) as client:
        client.add(listed(generated=(tuple(LISTED[:5]),)))
        client.run()

        assert client.tokens[FIRST] == [*LISTED, EOS]
        assert server.asked[0]["sampling_params"]["seed"] == 7


def test_a_choice_that_is_not_said_alike_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with VllmStandIn(grammars="anew", forgets=2) as server, remote_client(server) as client:
        client.add(listed(generated=(tuple(LISTED[:2]),)))
        client.run()

        assert client.tokens[FIRST] == [*LISTED, EOS]
        assert len(server.asked) == 3


def test_a_choice_that_is_never_said_alike_fails_and_nothing_of_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)
    with VllmStandIn(grammars="anew", forgets=99) as server, remote_client(server) as client:
        client.add(listed(generated=(tuple(LISTED[:2]),)))
        client.run()

        assert client.tokens[FIRST] == LISTED[:2]
        assert client.ends["a"].outcome is Outcome.FAILED
        assert len(server.asked) == remote_runner.MOST_TRIES


SCHEMA = '{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}'
FRAME = 'start: (@answer | calls)\ncalls: "call @answer" %json {"const": "@answer"}'


@pytest.mark.parametrize(
    ("kind", "text", "kept", "broken"),
    [
        ("json_schema", SCHEMA, '{"city": "Rome"}', '{"town": "Rome"}'),
        ("regex", "[a-c]{3}|x\\\\y", "abc", "abd"),
        ("choice", '["yes", "no\\n"]', "no\n", "maybe"),
        ("grammar", 'start: "a" B+\nB: "b" | "}"', "ab}b", "b"),
        ("grammar", 'root ::= "a" item*\nitem ::= "b" | "c"', "abcb", "ad"),
    ],
)
def test_a_grammar_as_one_text_takes_the_same_answers(kind: StructureKind, text: str, kept: str, broken: str) -> None:
    """Also beside tools, where a frame names it."""
    grammar = Check().run(Structure(kind, text, "")).grammar
    named = msgspec.json.decode(grammar)["grammars"][0] if grammar.startswith("{") else {"lark_grammar": grammar}
    framed = msgspec.json.encode({"grammars": [{"lark_grammar": FRAME}, {**named, "name": "answer"}]}).decode()

    assert [taken(as_lark(grammar), answer) for answer in (kept, broken)] == [True, False]
    answers = (kept, broken, 'call @answer"@answer"')
    assert [taken(as_lark(framed), answer) for answer in answers] == [taken(framed, answer) for answer in answers]
    assert [taken(framed, answer) for answer in answers] == [True, False, True]


class _Bytes:
    """A vocabulary of bytes."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return [*(text.encode() if isinstance(text, str) else text)]


def taken(grammar: str, answer: str) -> bool:
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
    as_vllm_reads_it = grammar if grammar.startswith("{") else llguidance.grammar_from("grammar", grammar)
    matcher = llguidance.LLMatcher(tokenizer, as_vllm_reads_it, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens([*answer.encode()]) and matcher.is_accepting()

"""A constrained choice says what its grammar allows, whatever happens to it, and costs those beside it nothing."""

import json
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fairlane.scheduler.planner.steps import Ended, SeqId
from fairlane.scheduler.protocol.grammar_limits import (
    BROKEN_GRAMMAR,
    KEPT_BYTES,
    KEPT_TENANT_BYTES,
    MAX_COMPILED_BYTES,
    MIN_COMPILED_BYTES,
)
from fairlane.scheduler.protocol.messages import Lease, ModelCard, Outcome, Preempted, Sampling, YieldMode
from fairlane.worker.engine.grammar import (
    TRUSTED_AFTER,
    Constraint,
    Grammars,
    Mask,
    _GrammarCache,
)
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import GREEDY, lease
from tests.support.worker.prompts import PROMPTS, alone
from tests.support.worker.stepped import Client

CHARACTERS = [chr(number) for number in range(0x20, 0x7F)]
END = 95
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 8},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}


def json_grammar(schema: object) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})


GRAMMAR = json_grammar(SCHEMA)


@pytest.fixture(scope="module")
def grammars(tiny: TransformersModel) -> Grammars:
    """Of a vocabulary with a token for each printing character, for a model of random weights."""
    names = {character.replace(" ", "Ġ"): number for number, character in enumerate(CHARACTERS)}
    names |= {f"<{number}>": number for number in range(len(CHARACTERS), tiny.vocab_size)}
    tokenizer = Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([name for name in names if len(name) > 1])
    return Grammars(
        ModelCard(
            model="tiny",
            tokenizer_json=tokenizer.to_str(),
            chat_template=None,
            context_length=4_096,
            vocab_size=tiny.vocab_size,
            eos_token_ids=(END,),
        )
    )


def constrained(
    job_id: str,
    prompt: Sequence[int],
    *,
    grammar: str = GRAMMAR,
    n: int = 1,
    max_tokens: int = 100,
    generated: tuple[tuple[int, ...], ...] = (),
    sampling: Sampling = GREEDY,
    close_json: bool = False,
) -> Lease:
    drawn = msgspec.structs.replace(sampling, stop_token_ids=(END,))
    held = lease(job_id, prompt, sampling=drawn, n=n, max_tokens=max_tokens, generated=generated)
    return msgspec.structs.replace(held, job=msgspec.structs.replace(held.job, grammar=grammar, close_json=close_json))


def text_of(tokens: Sequence[int]) -> str:
    assert tokens[-1] == END
    return "".join(CHARACTERS[token] for token in tokens[:-1])


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5), Sampling(seed=6, top_p=0.9, min_tokens=90)])
def test_each_choice_is_what_the_schema_asks_for(
    tiny: TransformersModel, grammars: Grammars, sampling: Sampling
) -> None:
    client = Client(tiny, grammars=grammars)
    client.add(constrained("job", PROMPTS[0], n=3, sampling=sampling))

    client.run()

    assert client.ended["job"].outcome is Outcome.FINISHED
    for choice in range(3):
        jsonschema.validate(json.loads(text_of(client.tokens[SeqId("job", choice)])), SCHEMA)


def test_those_beside_it_say_what_they_would_say_alone(tiny: TransformersModel, grammars: Grammars) -> None:
    client = Client(tiny, grammars=grammars)
    for index, prompt in enumerate(PROMPTS):
        client.add(lease(str(index), prompt, max_tokens=10))
        client.add(constrained(f"c{index}", prompt))

    client.run()

    assert [alone(tiny, prompt, 10) for prompt in PROMPTS] == [client.tokens[SeqId(str(i), 0)] for i in range(5)]
    for index in range(5):
        jsonschema.validate(json.loads(text_of(client.tokens[SeqId(f"c{index}", 0)])), SCHEMA)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preemption_at_any_step_changes_nothing(tiny: TransformersModel, grammars: Grammars, mode: YieldMode) -> None:
    chooser = random.Random(3)
    jobs = [
        constrained(str(index), prompt, sampling=Sampling(seed=index, temperature=0.8))
        for index, prompt in enumerate(PROMPTS)
    ]
    undisturbed, disturbed = Client(tiny, grammars=grammars), Client(tiny, grammars=grammars)
    for job in jobs:
        undisturbed.add(job)
        disturbed.add(job)

    def disturb(_: int) -> None:
        for job_id in disturbed.engine.planner.job_ids():
            if chooser.random() < 0.3:
                disturbed.engine.planner.preempt(SeqId(job_id, 0), mode)

    undisturbed.run()
    disturbed.run(disturb)

    assert undisturbed.tokens == disturbed.tokens
    assert any(isinstance(event, Preempted) for event in disturbed.events)


def test_another_worker_goes_on_where_the_first_ended(tiny: TransformersModel, grammars: Grammars) -> None:
    first = Client(tiny, grammars=grammars)
    first.add(constrained("job", PROMPTS[1], n=2, sampling=Sampling(seed=9)))
    first.run()
    whole = [first.tokens[SeqId("job", choice)] for choice in range(2)]

    second = Client(tiny, grammars=grammars)
    heads = (tuple(whole[0][:7]), tuple(whole[1][:1]))
    for choice, head in enumerate(heads):
        second.tokens[SeqId("job", choice)] += head
    second.add(constrained("job", PROMPTS[1], n=2, sampling=Sampling(seed=9), generated=heads))
    second.run()

    assert whole == [second.tokens[SeqId("job", choice)] for choice in range(2)]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, logprobs=1)])
def test_an_output_is_closed_before_its_limit_wherever_it_goes_on(
    tiny: TransformersModel, grammars: Grammars, sampling: Sampling
) -> None:
    def said(most: int, *, close_json: bool, head: tuple[int, ...] = ()) -> list[int]:
        client = Client(tiny, grammars=grammars)
        client.tokens[SeqId("job", 0)] += head
        client.add(
            constrained("job", PROMPTS[0], max_tokens=most, sampling=sampling, generated=(head,), close_json=close_json)
        )
        client.run()
        return client.tokens[SeqId("job", 0)]

    free = said(100, close_json=False)
    least = len('{"name":"ab","size":1}') + 1
    assert said(100, close_json=True) == free
    for most in range(least, len(free), 4):
        assert END not in said(most, close_json=False)
        whole = said(most, close_json=True)
        jsonschema.validate(json.loads(text_of(whole)), SCHEMA)
        assert said(most, close_json=True, head=tuple(whole[:-3])) == whole
    assert said(least - 2, close_json=True) == free[: least - 2], "it could not be closed at all"


@pytest.mark.parametrize(
    ("grammar", "generated"),
    [("start: unknown", ()), (GRAMMAR, ((50, 51),)), (json_grammar({"not": {}}), ())],
    ids=["that is none", "that its tokens are not of", "with a keyword that is not served"],
)
def test_a_broken_grammar_fails_its_own_job_alone(
    tiny: TransformersModel, grammars: Grammars, grammar: str, generated: tuple[tuple[int, ...], ...]
) -> None:
    client = Client(tiny, grammars=grammars)
    client.tokens[SeqId("broken", 0)] += [token for ids in generated for token in ids]
    client.add(constrained("broken", PROMPTS[0], grammar=grammar, generated=generated))
    client.add(lease("sound", PROMPTS[1], max_tokens=10))

    client.run()

    assert (client.ended["broken"].outcome, client.ended["broken"].error) == (Outcome.FAILED, BROKEN_GRAMMAR)
    assert alone(tiny, PROMPTS[1], 10) == client.tokens[SeqId("sound", 0)]


LOOSE = json.dumps({"grammars": [{"lark_grammar": "start: /[ -~]{20}[0-9]{3}[ -~]{20}/"}]})
"""Allows what the model says, but for three tokens in the middle and at its end."""


def test_masks_are_filled_only_where_a_trusted_grammar_refuses_and_change_nothing(
    tiny: TransformersModel, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that computes the model asks about the likeliest token alone, once that was allowed a few times."""
    said, masks = {}, {}
    for trusted_after in (TRUSTED_AFTER, 1_000):
        monkeypatch.setattr("fairlane.worker.engine.grammar.TRUSTED_AFTER", trusted_after)
        client, begun = Client(tiny, grammars=grammars), Counting(grammars.begin)
        monkeypatch.setattr(grammars, "begin", begun)
        for index, prompt in enumerate(PROMPTS):
            client.add(constrained(str(index), prompt, grammar=LOOSE))
        client.run()
        monkeypatch.undo()
        assert all(ended.outcome is Outcome.FINISHED for ended in client.ended.values())
        said[trusted_after], masks[trusted_after] = client.tokens, begun.count

    assert said[TRUSTED_AFTER] == said[1_000]
    assert 0 < masks[TRUSTED_AFTER] < masks[1_000]


class Counting:
    """Counts the constraints whose masks are to be filled."""

    def __init__(self, begin: Callable[[Sequence[Constraint]], None]) -> None:
        self._begin = begin
        self.count = 0

    def __call__(self, constraints: Sequence[Constraint]) -> None:
        self.count += sum(not constraint.is_filling for constraint in constraints)
        self._begin(constraints)


@given(choices=st.lists(st.integers(0, 10_000), min_size=60, max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_a_grammar_allows_a_token_alone_where_its_mask_has_it(
    tiny: TransformersModel, grammars: Grammars, choices: list[int]
) -> None:
    asked, masked = (Constraint(grammars.compile(GRAMMAR).result().deep_copy()) for _ in range(2))
    for choice in choices:
        grammars.begin([masked])
        bits = np.unpackbits(masked.take().bits, bitorder="little")[: tiny.vocab_size]
        allowed = {token for token in range(tiny.vocab_size) if asked.allows(token)}
        assert allowed | {END} == {*np.flatnonzero(bits)} | {END}
        assert END not in allowed or bits[END]
        token = int(np.flatnonzero(bits)[choice % bits.sum()])
        if token == END:
            return
        for constraint in (asked, masked):
            constraint.append(token, was_likeliest=False)


def test_a_job_may_be_cancelled_granted_or_dropped_while_its_grammar_is_compiled(
    tiny: TransformersModel, grammars: Grammars
) -> None:
    client = Client(tiny, grammars=grammars)
    engine = client.engine
    slow = json_grammar({"enum": [f"value{number}" for number in range(3_000)]})
    for job_id in ("cancelled", "dropped", "granted"):
        held = constrained(job_id, PROMPTS[0], grammar=slow)
        client.add(msgspec.structs.replace(held, job=msgspec.structs.replace(held.job, granted_until=2)))

    assert engine.cancel("cancelled") == Ended("cancelled", Outcome.CANCELLED)
    engine.drop("dropped")
    engine.grant("granted", 100)
    assert [*engine.epochs] == ["granted"]
    grammars.compile(slow).result()
    client.run()

    assert json.loads(text_of(client.tokens[SeqId("granted", 0)])).startswith("value")
    assert [*client.ended] == ["granted"]


def test_the_engines_thread_never_waits_for_a_compilation(
    tiny: TransformersModel, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grammars whose compilation does not end fill the cache meanwhile, and evict one that is ready."""
    client, go_on, threads = Client(tiny, grammars=grammars), threading.Event(), list[str]()
    gates, unblocked = [threading.Event(), *[go_on] * 20], list[bool]()
    first = gates[0]

    def compile_slowly(*args: Any, **given: Any) -> LLMatcher:
        threads.append(threading.current_thread().name)
        gate = gates.pop(0)
        unblocked.extend([True] if not gate.wait(5.0) and gate is go_on else [])
        return LLMatcher(*args, **given)

    monkeypatch.setattr(grammars, "_cache", _GrammarCache(1, 1))
    monkeypatch.setattr("fairlane.worker.engine.grammar.LLMatcher", compile_slowly)
    early = json_grammar({"enum": ["early"]})
    held = constrained("ready", PROMPTS[0], grammar=early)
    client.add(held)
    ready = grammars.compile(early, held.job.tenant)
    first.set()
    ready.result()
    for number in range(4):
        client.add(constrained(f"slow-{number}", PROMPTS[1], grammar=json_grammar({"enum": [f"value{number}"]})))
    client.add(lease("free", PROMPTS[2], max_tokens=10))
    while not {"ready", "free"} <= client.ended.keys():
        client.step()

    assert not unblocked, "a step waited for a compilation"
    assert alone(tiny, PROMPTS[2], 10) == client.tokens[SeqId("free", 0)]
    go_on.set()
    assert all(name.startswith("grammar") for name in threads), "compiled on another thread"


def test_compiled_grammars_are_bounded_in_bytes_for_each_tenant_and_in_all(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small ones are kept, few large ones; one of unknown size counts for as much as any may take."""
    monkeypatch.setattr(grammars, "_cache", _GrammarCache(KEPT_BYTES, KEPT_TENANT_BYTES))
    monkeypatch.setattr(grammars, "_enqueue", lambda *_: Future())
    large, small = MAX_COMPILED_BYTES, MIN_COMPILED_BYTES
    for number in range(2 * KEPT_TENANT_BYTES // small):
        grammars.compile(f"small{number}", "small", 1)
    for number in range(20):
        grammars.compile(f"large{number}", "large", large if number % 2 else 0)
    assert grammars.kept_bytes == {"small": KEPT_TENANT_BYTES, "large": KEPT_TENANT_BYTES}
    assert [name in grammars._cache._compiled["large"] for name in ("large11", "large12")] == [False, True]

    for number in range(60):
        grammars.compile("one", f"tenant{number}", large)
        grammars.compile("recent", "large", large)
    assert KEPT_BYTES - large < sum(grammars.kept_bytes.values()) <= KEPT_BYTES
    assert "recent" in grammars._cache._compiled["large"]
    assert set(grammars.kept_bytes) >= {f"tenant{number}" for number in range(40, 60)}


def test_the_grammars_of_a_deleted_tenant_are_dropped(grammars: Grammars) -> None:
    for name in ("acme", "other"):
        for number in range(2):
            grammars.compile(json_grammar({"enum": [f"{name}{number}"]}), name, 1).result(30.0)

    grammars.forget_tenant("acme")
    grammars.forget_tenant("nobody")

    assert "acme" not in grammars.kept_bytes
    assert "other" in grammars.kept_bytes


def test_tenants_take_turns_in_having_grammars_compiled(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, order = threading.Event(), list[str]()

    def compile_slowly(tokenizer: Any, grammar: str, **given: Any) -> LLMatcher:
        order.extend(tenant for tenant in ("modest", "greedy") if tenant in grammar)
        assert go_on.wait(30.0)
        return LLMatcher(tokenizer, grammar, **given)

    monkeypatch.setattr("fairlane.worker.engine.grammar.LLMatcher", compile_slowly)
    asked = [grammars.compile(json_grammar({"enum": [f"greedy{number}"]}), "greedy") for number in range(10)]
    asked.append(grammars.compile(json_grammar({"enum": ["modest"]}), "modest"))
    go_on.set()
    for one in asked:
        one.result(30.0)

    assert order.index("modest") <= 4


AMBIGUOUS = "start: s\ns: s s | X\nX: /[a-z ]/"


def test_rows_whose_masks_are_late_miss_steps_and_change_nothing(
    tiny: TransformersModel, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on meanwhile; the late ones say what they would have said."""
    undisturbed, client, go_on = Client(tiny, grammars=grammars), Client(tiny, grammars=grammars), threading.Event()
    undisturbed.add(constrained("late", PROMPTS[0], n=2))
    undisturbed.run()
    fill = grammars._fill

    def fill_late(constraints: Sequence[Constraint]) -> list[Mask]:
        assert go_on.wait(30.0)
        return fill(constraints)

    grammars.compile(GRAMMAR).result()
    monkeypatch.setattr(grammars, "_fill", fill_late)
    monkeypatch.setattr("fairlane.worker.engine.runner.PATIENCE_S", 0.0)
    client.add(constrained("late", PROMPTS[0], n=2))
    client.add(lease("free", PROMPTS[1], max_tokens=10))
    steps = 0
    while "free" not in client.ended:
        client.step()
        steps += 1

    assert steps <= 12
    assert not client.tokens[SeqId("late", 0)]
    assert alone(tiny, PROMPTS[1], 10) == client.tokens[SeqId("free", 0)]
    go_on.set()
    monkeypatch.setattr("fairlane.worker.engine.runner.PATIENCE_S", 30.0)
    client.run()
    assert [client.tokens[SeqId("late", n)] for n in (0, 1)] == [undisturbed.tokens[SeqId("late", n)] for n in (0, 1)]


def test_a_step_without_grammars_waits_for_no_mask(
    tiny: TransformersModel, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("a step without a grammar did work for grammars")

    client = Client(tiny, grammars=grammars)
    client.add(lease("free", PROMPTS[1], max_tokens=10))
    monkeypatch.setattr("fairlane.worker.engine.runner.wait", unexpected)
    monkeypatch.setattr(Constraint, "allows", unexpected)
    monkeypatch.setattr(grammars, "_fill", unexpected)

    client.run()

    assert alone(tiny, PROMPTS[1], 10) == client.tokens[SeqId("free", 0)]


def test_a_grammar_that_takes_too_long_for_each_token_ends_its_own_job_alone(
    tiny: TransformersModel, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("worker.engine.grammar", "scheduler.protocol.grammar_limits"):
        monkeypatch.setattr(f"fairlane.{module}.SLOW_MASK_S", -1.0)  # every mask counts
    monkeypatch.setattr("fairlane.scheduler.protocol.grammar_limits.BUDGET_S", 0.0)
    monkeypatch.setattr("fairlane.scheduler.protocol.grammar_limits.BUDGET_PER_TOKEN_S", 0.0)
    client = Client(tiny, grammars=grammars)
    client.add(constrained("slow", PROMPTS[0], grammar=AMBIGUOUS, n=2))
    client.add(lease("free", PROMPTS[1], max_tokens=10))

    client.run()

    assert (client.ended["slow"].outcome, client.ended["slow"].error) == (Outcome.FAILED, BROKEN_GRAMMAR)
    assert alone(tiny, PROMPTS[1], 10) == client.tokens[SeqId("free", 0)]


def test_biases_move_single_tokens(tiny: TransformersModel) -> None:
    client = Client(tiny)
    client.add(lease("banned", PROMPTS[0], max_tokens=8, sampling=Sampling(temperature=0.0, logit_bias=((7, 100.0),))))
    plain = alone(tiny, PROMPTS[0], 8)
    without = Sampling(temperature=0.0, logit_bias=tuple((token, -100.0) for token in set(plain)))
    client.add(lease("other", PROMPTS[0], max_tokens=8, sampling=without))

    client.run()

    assert client.tokens[SeqId("banned", 0)] == [7] * 8
    assert not set(client.tokens[SeqId("other", 0)]) & set(plain)

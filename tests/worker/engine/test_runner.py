"""The runner: what a plan says is what is computed, however the plan cuts and orders it."""

import pytest
import torch

from fairlane.scheduler.planner.steps import SeqId, StepPlan
from fairlane.scheduler.protocol.messages import Sampling
from fairlane.worker.engine.runner import UNCOMPUTABLE, UNKNOWN_ID, Runner, RunnerError
from fairlane.worker.engine.sampling import BROKEN_LOGITS
from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import GREEDY, Hand, Line, lease
from tests.support.worker.prompts import PROMPTS, alone


def plain_greedy(model: TransformersModel, prompt: list[int], tokens: int) -> list[int]:
    """By transformers' own attention, without any cache."""
    found = list(prompt)
    for _ in range(tokens):
        found.append(int(model.plain_logits(found).argmax()))
    return found[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_tokens_are_those_of_the_model_itself(tiny: TransformersModel, prompt: list[int]) -> None:
    assert plain_greedy(tiny, prompt, 12) == alone(tiny, prompt, 12)


def test_a_batch_gives_each_sequence_what_it_gets_alone(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    lines = [hand.start(lease(str(index), prompt)) for index, prompt in enumerate(PROMPTS)]

    found = hand.generate(lines, 12)

    assert [alone(tiny, prompt, 12) for prompt in PROMPTS] == found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 16])
def test_a_prompt_may_be_computed_in_chunks_of_any_size(tiny: TransformersModel, count: int) -> None:
    hand = Hand(tiny)
    lines = [hand.start(lease(str(index), prompt)) for index, prompt in enumerate(PROMPTS)]

    found = hand.generate(lines, 8, count=count)

    assert [alone(tiny, prompt, 8) for prompt in PROMPTS] == found


def test_a_row_that_does_not_sample_yields_nothing(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    line = hand.start(lease("a", PROMPTS[2]))

    result = hand.step([line], count=4)

    assert result.tokens == {}
    assert result.failed == {}


def test_an_empty_plan_runs(tiny: TransformersModel) -> None:
    result = Hand(tiny).runner.run(StepPlan(number=7))

    assert (result.number, result.tokens, result.failed) == (7, {}, {})


def test_a_swapped_sequence_resumes_bit_exact_in_other_blocks(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    victim, other = hand.start(lease("victim", PROMPTS[2])), hand.start(lease("other", PROMPTS[4]))
    hand.generate([victim, other], 3)
    before = hand.cache.pool[victim.table].clone()
    slots = [9, 3, 4, 5, 0, 1][: len(victim.table)]

    hand.step([other], swap_out=hand.park(victim, slots))
    hand.generate([other], 8)
    hand.runner.run(StepPlan(99, swap_in=hand.fetch(victim, slots)))

    assert torch.equal(before, hand.cache.pool[victim.table])
    assert alone(tiny, PROMPTS[2], 12) == hand.generate([victim], 12)[0]


def test_one_step_may_swap_a_sequence_out_and_another_into_its_blocks(tiny: TransformersModel) -> None:
    hand = Hand(tiny, blocks=11)
    first = hand.start(lease("first", PROMPTS[2]))
    hand.generate([first], 2)
    hand.runner.run(StepPlan(50, swap_out=hand.park(first, range(len(first.table)))))
    slots = range(-(-first.computed // 4))
    hand.free = list(range(11))
    second = hand.start(lease("second", PROMPTS[4]))
    hand.generate([second], 2)
    held = -(-second.computed // 4)

    outgoing = hand.park(second, range(6, 6 + held))
    hand.step([first], swap_out=outgoing, swap_in=hand.fetch(first, slots))

    assert {copy.source for copy in outgoing} & set(first.table)
    assert alone(tiny, PROMPTS[2], 6) == hand.generate([first], 6)[0]


def test_a_recomputed_sequence_continues_where_it_was(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    line = hand.start(lease("a", PROMPTS[2]))
    hand.generate([line], 5)

    hand.free += line.table
    line.table, line.computed = [], 0
    hand.generate([line], 12)

    assert alone(tiny, PROMPTS[2], 12) == line.generated


def test_a_job_from_another_worker_continues_with_its_counter_and_penalties(tiny: TransformersModel) -> None:
    sampling = Sampling(seed=3, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2)
    hand = Hand(tiny)
    whole = hand.generate([hand.start(lease("whole", PROMPTS[1], sampling=sampling))], 20)[0]

    resumed = hand.start(lease("resumed", PROMPTS[1], sampling=sampling, generated=(tuple(whole[:7]),)))

    assert whole == hand.generate([resumed], 20)[0]


def test_choices_share_the_prompts_full_blocks_and_differ(tiny: TransformersModel) -> None:
    sampling = Sampling(seed=11)
    hand = Hand(tiny)
    job = lease("a", PROMPTS[2], sampling=sampling, n=3)
    lines = [hand.start(job, choice) for choice in range(3)]
    hand.generate(lines[:1], 1)
    shared = (len(PROMPTS[2]) - 1) // 4
    for line in lines[1:]:
        line.table, line.computed = lines[0].table[:shared], shared * 4

    found = hand.generate(lines, 10)

    for choice, tokens in enumerate(found):
        own = Hand(tiny)
        separate = own.start(job)
        separate.seq = SeqId("a", choice)
        assert tokens == own.generate([separate], 10)[0]
    assert len({tuple(tokens) for tokens in found}) == 3


@pytest.mark.parametrize("token", [97, -1, 10**9])
def test_an_unknown_token_fails_its_row_alone(tiny: TransformersModel, token: int) -> None:
    hand = Hand(tiny)
    bad, good = hand.start(lease("bad", [1, token, 2])), hand.start(lease("good", PROMPTS[1]))

    result = hand.step([bad, good])

    assert {bad.seq: UNKNOWN_ID} == result.failed
    assert alone(tiny, PROMPTS[1], 1) == good.generated


@pytest.fixture
def poisoned(tiny: TransformersModel) -> "torch.utils.hooks.RemovableHandle":
    """Token 96 becomes NaN in the model's very first layer."""
    embedding = tiny.causal_lm.get_input_embeddings()

    def poison(_: object, args: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return out.masked_fill((args[0] == 96)[..., None], float("nan"))

    hook: torch.utils.hooks.RemovableHandle = embedding.register_forward_hook(poison)
    return hook


def test_a_nan_fails_its_row_alone_and_does_not_outlive_it(
    tiny: TransformersModel, poisoned: "torch.utils.hooks.RemovableHandle"
) -> None:
    hand = Hand(tiny, blocks=6)
    bad, good = hand.start(lease("bad", [96] * 9)), hand.start(lease("good", PROMPTS[3]))
    result = hand.step([bad, good])
    assert {bad.seq: BROKEN_LOGITS} == result.failed
    assert good.seq in result.tokens

    hand.free += bad.table  # its next owner's first block holds one token, beside what the NaN left there
    heir = hand.start(lease("heir", PROMPTS[0]))
    hand.free.sort(key=lambda block: block in bad.table)
    hand.generate([good, heir], 6)
    poisoned.remove()

    assert set(heir.table) & set(bad.table)
    assert [alone(tiny, PROMPTS[3], 6), alone(tiny, PROMPTS[0], 6)] == [good.generated, heir.generated]


def test_a_row_that_breaks_the_whole_step_fails_alone(tiny: TransformersModel) -> None:
    def refuse(_: object, args: tuple[torch.Tensor]) -> None:
        if (args[0] == 77).any():
            raise RuntimeError("out of memory")

    hook = tiny.causal_lm.get_input_embeddings().register_forward_pre_hook(refuse)
    hand = Hand(tiny)
    bad, good = hand.start(lease("bad", [77])), hand.start(lease("good", PROMPTS[1]))

    result = hand.step([bad, good])
    hook.remove()

    assert {bad.seq: UNCOMPUTABLE} == result.failed
    assert alone(tiny, PROMPTS[1], 5) == hand.generate([good], 5)[0]


def test_logprobs_come_with_the_tokens_that_ask_for_them(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    asks = hand.start(lease("asks", PROMPTS[1], sampling=Sampling(temperature=0.0, logprobs=3)))
    silent = hand.start(lease("silent", PROMPTS[1]))

    result = hand.step([asks, silent])

    expected = tiny.plain_logits(PROMPTS[1]).log_softmax(-1)
    assert {asks.seq} == result.logprobs.keys()
    found = result.logprobs[asks.seq]
    assert found.logprob == pytest.approx(float(expected[result.tokens[asks.seq]]), abs=1e-5)
    assert expected.topk(3).indices.tolist() == [token for token, _ in found.top]


def test_a_plan_that_does_not_continue_the_history_is_refused(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    line = hand.start(lease("a", PROMPTS[1]))
    line.prompt = ()  # so that the plan claims three generated tokens

    with pytest.raises(RunnerError, match="does not continue"):
        hand.step([line])


def test_a_forgotten_job_leaves_nothing(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    hand.start(lease("a", PROMPTS[1], n=2))

    hand.runner.forget("a")
    hand.runner.forget("never heard of")

    with pytest.raises(RunnerError):
        hand.step([Line(SeqId("a", 1), (1,), [1])])


def test_times_are_reported(tiny: TransformersModel) -> None:
    hand = Hand(tiny)
    line = hand.start(lease("a", PROMPTS[2]))
    hand.step([line])

    result = hand.runner.run(StepPlan(2, swap_out=hand.park(line, range(5))))

    assert result.copy_ms > 0
    assert 0 <= result.run_ms < 1_000


def test_half_precision_runs_too(tiny: TransformersModel) -> None:
    config = tiny.causal_lm.config
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    causal_lm = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation=config._attn_implementation
    )
    model = TransformersModel("tiny16", causal_lm.eval().requires_grad_(False))
    hand = Hand(model)

    found = hand.generate([hand.start(lease("a", PROMPTS[2])), hand.start(lease("b", PROMPTS[1]))], 6, count=5)

    assert [len(tokens) for tokens in found] == [6, 6]
    assert torch.bfloat16 == hand.cache.pool.dtype


def test_the_runner_keeps_the_cache_it_was_given(tiny: TransformersModel) -> None:
    hand = Hand(tiny)

    assert Runner(tiny, hand.cache).cache is hand.cache
    assert GREEDY.temperature == 0

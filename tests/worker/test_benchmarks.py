"""The benchmarks' own arithmetic, on the tiny model."""

from benchmarks.engine import Series, make_requests, markdown, measure, ours
from benchmarks.exactness import make_prompts
from tests.worker.test_engine import Client
from worker.model import PagedModel


def test_requests_are_the_same_in_every_run() -> None:
    requests = make_requests(40, 100, 64, 512, 1000)

    assert requests == make_requests(40, 100, 64, 512, 1000)
    assert all(1 <= len(prompt) <= 512 and 1 <= tokens <= 512 for prompt, tokens in requests)


def test_prompts_reach_from_one_token_to_the_longest() -> None:
    lengths = sorted(len(prompt) for prompt in make_prompts(50, 2000, 100))

    assert (lengths[0], lengths[-1], len(lengths)) == (1, 2000, 50)


def test_contenders_take_turns_and_do_all_the_work(tiny: PagedModel) -> None:
    turns: list[str] = []
    run = ours(Client(tiny).engine)

    series = measure({"a": run, "b": run}, make_requests(3, 5, 4, 20, 97), 2, turns.append)

    assert turns == ["a", "b", "a", "b", "b", "a"]
    assert all(len(one.tokens_per_s) == 2 for one in series)


def test_the_table_compares_medians() -> None:
    table = markdown([Series("ours", [10.0, 30.0, 20.0]), Series("theirs", [4.0, 5.0, 90.0])], {"cores": "2"}, "work")

    assert "| ours | 20 | 10 to 30 | 1.00x |" in table
    assert "| theirs | 5 | 4 to 90 | 4.00x |" in table
    assert "cores 2" in table

"""Which of a server's models a worker is for: that of its weights, or an adapter over them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import ModelCard, Outcome
from fairlane.worker.config import WorkerSection, WorkerSettings
from fairlane.worker.errors import EngineError
from fairlane.worker.remote import monitor
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote.open import open_engine
from tests.support.worker.hand import lease
from tests.support.worker.remote import facts, remote_client
from tests.support.worker.tiny_model import write_tiny_model
from tests.support.worker.vllm_stand_in import MODEL, VllmStandIn, continuation

PROMPT = (5, 6, 7, 8, 9)
FIRST = SeqId("a", 0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's files without its weights, which a worker before a server never needs."""
    directory = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    for weights in directory.glob("*.safetensors"):
        weights.unlink()
    return directory


@pytest.fixture
def server(root: Path) -> Iterator[VllmStandIn]:
    with VllmStandIn(root=str(root), adapters=["polite", "terse"]) as started:
        yield started


def card(server: VllmStandIn, model: str | None = None) -> ModelCard:
    """What a worker for that model tells the gateways."""
    section = WorkerSection(engine="vllm", engine_url=server.url, engine_model=model)
    with closing(open_engine(WorkerSettings(worker=section))) as opened:
        return opened.card


def test_without_a_name_a_worker_is_for_the_first_model(server: VllmStandIn) -> None:
    assert card(server) == card(server, MODEL)
    assert card(server).model == MODEL


def test_an_adapter_has_its_own_name_and_fingerprint_and_the_tokenizer_and_context_of_its_model(
    server: VllmStandIn,
) -> None:
    plain, polite, terse = (card(server, name) for name in (MODEL, "polite", "terse"))

    assert [one.model for one in (plain, polite, terse)] == [MODEL, "polite", "terse"]
    assert len({one.fingerprint for one in (plain, polite, terse)}) == 3
    assert polite.tokenizer_json == plain.tokenizer_json
    assert (polite.context_length, polite.vocab_size) == (plain.context_length, plain.vocab_size) == (256, 97)


def test_workers_for_the_same_adapter_of_servers_that_are_alike_share_a_card(server: VllmStandIn, root: Path) -> None:
    with VllmStandIn(root=str(root), adapters=["polite", "terse"]) as other:
        assert card(server, "polite") == card(other, "polite")


def test_a_model_that_the_server_has_not_is_named_beside_those_that_it_has(server: VllmStandIn) -> None:
    with pytest.raises(EngineError, match=r"engine_model: the server has no 'rude', but sum, polite, terse"):
        card(server, "rude")


def test_each_worker_of_one_server_gets_its_own_model_s_tokens(server: VllmStandIn) -> None:
    got = {}
    for name in (MODEL, "polite", "terse"):
        with remote_client(server, model=name) as client:
            client.add(lease("a", PROMPT, max_tokens=12))
            client.run()
            got[name] = client.tokens[FIRST]

    assert got == {name: continuation(PROMPT, 12, adapter) for adapter, name in enumerate(got)}
    assert got[MODEL] != got["polite"] != got["terse"]


def test_an_adapter_that_is_taken_away_hands_its_work_over_until_it_is_back(
    server: VllmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.001)
    monkeypatch.setattr(monitor, "GONE_S", 0.05)
    monkeypatch.setattr(monitor, "LOOK_S", 0.01)
    told: list[bool] = []
    with remote_client(server, model="terse", facts=facts(server, "terse")) as client:
        client.streams.watch(told.append)
        server.adapters.remove("terse")
        client.add(lease("a", PROMPT, max_tokens=6))
        client.until(lambda: told == [False])
        server.adapters.append("terse")
        client.run()

    assert told == [False, True]
    assert client.ends["a"].outcome is Outcome.FINISHED
    assert client.tokens[FIRST] == continuation(PROMPT, 6, 2)


def test_a_server_that_comes_back_with_another_model_gets_nothing_of_this_one(
    server: VllmStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "GONE_S", 0.05)
    monkeypatch.setattr(monitor, "LOOK_S", 0.01)
    told: list[bool] = []
    with remote_client(server, model=MODEL, facts=facts(server, MODEL)) as client:
        client.streams.watch(told.append)
        server.model = "other"
        client.add(lease("a", PROMPT, max_tokens=6))
        client.until(lambda: told == [False])

    assert server.produced == 0

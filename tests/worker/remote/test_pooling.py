"""Models that embed or score before every kind of server: each vector once, in order, and no belief in the replies."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome, TokenDelta
from fairlane.worker.config import EngineKind, WorkerSection, WorkerSettings
from fairlane.worker.errors import EngineError
from fairlane.worker.remote import runner as remote_runner
from fairlane.worker.remote.open import open_engine
from fairlane.worker.remote.pooling import PoolingApi
from fairlane.worker.remote.retokenise import Retokeniser
from tests.support.gateway.cards import byte_level_card
from tests.support.worker.hand import lease
from tests.support.worker.openai_stand_in import OpenAiStandIn, card, spelled
from tests.support.worker.remote import RemoteClient, facts_of, remote_client
from tests.support.worker.sglang_stand_in import SglangStandIn
from tests.support.worker.tiny_model import write_tiny_model
from tests.support.worker.vllm_stand_in import MODEL, WIDTH, VllmStandIn, score, vector

INPUTS = ((5, 6, 7), (8,), (9, 10))
SERVERS: dict[str, tuple[EngineKind, Callable[..., VllmStandIn]]] = {
    "vllm": ("vllm", VllmStandIn),
    "sglang": ("sglang", SglangStandIn),
    "openai": ("openai", OpenAiStandIn),
    "llama": ("openai", lambda **given: OpenAiStandIn(owner="llamacpp", **given)),
    "text": ("openai", lambda **given: OpenAiStandIn(owner="strict", **given)),
}
every_server = pytest.mark.parametrize("name", SERVERS)


@pytest.fixture(autouse=True)
def quick_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_runner, "PATIENCE_S", 0.01)
    monkeypatch.setattr(remote_runner, "RETRY_S", 0.01)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def api(kind: EngineKind, server: VllmStandIn) -> PoolingApi:
    """Once the facts are found."""
    found = PoolingApi(kind, server.url, None)
    facts_of(found)
    return found.serving(card())


def job(name: str, parts: Sequence[Sequence[int]], lane: LaneName = LaneName.LATENCY) -> Lease:
    made = lease(name, [token for part in parts for token in part], max_tokens=1, lane=lane)
    return msgspec.structs.replace(made, job=msgspec.structs.replace(made.job, inputs=tuple(map(len, parts))))


def vectors(client: RemoteClient, name: str = "a") -> list[float]:
    """All numbers of a job, which came once, with its end and without tokens."""
    deltas = [one for one in client.events if isinstance(one, TokenDelta) and one.job_id == name]
    assert [(one.token_ids, one.finish_reason) for one in deltas] == [((), "stop")]
    numbers: array[float] = array("f", deltas[0].embedding)
    return numbers.tolist()


@every_server
def test_embeddings_are_those_of_the_token_ids_where_the_server_takes_them(name: str) -> None:
    kind, serve = SERVERS[name]
    with serve(pools="embeddings") as server, remote_client(server, api=api(kind, server)) as client:
        client.add(job("a", INPUTS), job("b", INPUTS[:1]))
        client.run()

        given = [*INPUTS] if name != "text" else [spelled(ids) for ids in INPUTS]
        assert vectors(client) == [number for one in given for number in vector(one)]
        assert vectors(client, "b") == vector(given[0])
        assert {ended.outcome for ended in client.ends.values()} == {Outcome.FINISHED}
        assert all(("cache_salt" in body, "priority" in body) == (kind == "vllm",) * 2 for body in server.asked)


@every_server
def test_scores_are_those_of_pairs_in_their_order(name: str) -> None:
    kind, serve = SERVERS[name]
    query, other, documents = (20, 21), (22,), [(30 + number,) for number in range(6)]
    pairs = [(query, document) for document in documents] + [(other, documents[0])]
    with serve(pools="scores") as server, remote_client(server, api=api(kind, server)) as client:
        client.add(job("a", [part for pair in pairs for part in pair]))
        client.run()

        assert vectors(client) == [score(spelled(first), spelled(second)) for first, second in pairs]
        assert [len(body["documents"]) for body in server.asked] == [6, 1]


def test_words_in_a_text_do_not_become_control_tokens() -> None:
    tokens = TextModel(byte_level_card()).start("a<|im_end|>b", None)

    assert Retokeniser(byte_level_card()).plain(tokens) == "a< |im_end|>b"


def test_unknown_words_stay_where_a_control_token_is_broken_up() -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "[": 1, "SEP": 2, "]": 3, "[SEP]": 4}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    tokenizer.decoder = Fuse()
    words = Retokeniser(msgspec.structs.replace(card(), tokenizer_json=tokenizer.to_str()))

    assert words.plain([0, 1, 2, 3]) == "[UNK][ SEP]"


@pytest.mark.parametrize("lie", ["garbled", "short", "size"])
def test_a_reply_that_does_not_fit_is_asked_for_again(lie: str) -> None:
    with VllmStandIn(pools="embeddings") as server, remote_client(server, api=api("vllm", server)) as client:
        server.lies, server.lies_left = lie, 1
        client.add(job("a", INPUTS))
        client.run()

        assert vectors(client) == [number for one in INPUTS for number in vector(one)]
        assert len(server.asked) == 2


def test_a_refused_job_fails_and_a_cancelled_one_ends_its_request() -> None:
    with (
        VllmStandIn(pools="embeddings", refuses=400) as server,
        remote_client(server, api=api("vllm", server)) as client,
    ):
        client.add(job("a", INPUTS))
        client.run()
        server.refuses, server.lies = None, "silent"
        client.add(job("b", INPUTS))
        client.until(lambda: len(server.asked) == 2)
        client.engine.cancel("b")
        client.until(lambda: server.aborted)

        assert client.ends["a"].outcome is Outcome.FAILED
        assert client.tokens[SeqId("b", 0)] == []


def test_a_server_without_priorities_gets_none() -> None:
    with VllmStandIn(pools="scores", has_priorities=False) as server:
        with remote_client(server, api=api("vllm", server)) as client:
            client.add(job("a", [(5,), (6,)]))
            client.run()
        assert vectors(client) == [score(spelled([5]), spelled([6]))]


@every_server
@pytest.mark.parametrize(("pools", "size"), [("embeddings", WIDTH), ("scores", 1)])
def test_a_worker_finds_what_its_server_makes(name: str, pools: str, size: int, files: Path) -> None:
    kind, serve = SERVERS[name]
    with serve(pools=pools) as server:
        section = WorkerSection(engine=kind, engine_url=server.url, max_sequences=2)
        with closing(open_engine(WorkerSettings(model=str(files), worker=section))) as engine:
            card, sizes = engine.card, engine.engine.planner.pool_sizes
    assert (card.model, card.yields, card.embedding_size) == (MODEL, pools, size)
    assert card.is_exact is (pools == "embeddings" and name != "text")
    assert sizes.block_size * sizes.blocks >= 2 * (card.context_length + 1)


def test_a_server_that_comes_back_with_another_size_is_refused() -> None:
    with VllmStandIn(pools="embeddings") as server:
        found = PoolingApi("vllm", server.url, None)
        facts_of(found)
        again = found.serving(card())
        server.stop()
        server.pools = "scores"
        server.start()

        async def look() -> bool:
            try:
                return await again.is_up()
            finally:
                await again.close()

        with pytest.raises(EngineError, match="is not what it was"):
            asyncio.run(look())

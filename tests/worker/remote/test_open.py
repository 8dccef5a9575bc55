"""What a worker says of a server that it stands before: its card, and how much it may have in hand."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fairlane.worker.config import EngineKind, WorkerSection, WorkerSettings
from fairlane.worker.engine.engine import OpenedEngine
from fairlane.worker.errors import EngineError
from fairlane.worker.remote.open import open_engine
from fairlane.worker.remote.sglang import LACKS
from tests.support.worker.openai_stand_in import OpenAiStandIn
from tests.support.worker.sglang_stand_in import SglangStandIn
from tests.support.worker.tiny_model import write_tiny_model
from tests.support.worker.vllm_stand_in import MODEL, VllmStandIn

SEQUENCES = 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@contextmanager
def opened(server: VllmStandIn, kind: EngineKind, files: Path, model: str | None = None) -> Iterator[OpenedEngine]:
    section = WorkerSection(engine=kind, engine_url=server.url, engine_model=model, max_sequences=SEQUENCES)
    with closing(open_engine(WorkerSettings(model=str(files), worker=section))) as engine:
        yield engine


def test_sglang_is_exact_and_says_how_much_it_holds(files: Path) -> None:
    with SglangStandIn(slots=6, blocks=64, block_size=4) as server, opened(server, "sglang", files) as engine:
        sizes = engine.engine.planner.pool_sizes

        assert (engine.card.model, engine.card.is_exact, engine.card.lacks) == (MODEL, True, (*LACKS, "close_json"))
        assert (sizes.block_size, sizes.blocks) == (16, 16)
        assert engine.engine.planner.max_sequences == 6


def test_one_that_says_text_alone_says_so_in_its_card(files: Path) -> None:
    with OpenAiStandIn(owner="strict") as server, opened(server, "openai", files) as engine:
        assert (engine.card.is_exact, engine.card.takes_grammars) == (False, False)
        assert {"logprobs", "top_k", "cache_salt"} <= {*engine.card.refused_fields}


@pytest.mark.parametrize(
    ("owner", "drawn"), [("llamacpp", {"temperature": 0.6, "top_k": 20}), ("strict", {"temperature": 0.6})]
)
def test_what_a_server_does_not_take_is_no_usual_draw_of_its_model(
    tmp_path: Path, owner: str, drawn: dict[str, float]
) -> None:
    files = write_tiny_model(tmp_path / "tiny")
    (files / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')

    with OpenAiStandIn(owner=owner) as server, opened(server, "openai", files) as engine:
        assert engine.card.usual_draw == drawn


def test_a_penalty_that_sglang_refuses_is_no_usual_draw(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "tiny")
    (files / "generation_config.json").write_text('{"temperature": 0.6, "repetition_penalty": 2.5}')

    with SglangStandIn(slots=6, blocks=64, block_size=4) as server, opened(server, "sglang", files) as engine:
        assert engine.card.usual_draw == {"temperature": 0.6}


@pytest.mark.parametrize(("owner", "sequences"), [("llamacpp", 8), ("strict", SEQUENCES)])
def test_blocks_of_a_server_that_says_nothing_of_them_suffice(files: Path, owner: str, sequences: int) -> None:
    with OpenAiStandIn(owner=owner) as server, opened(server, "openai", files) as engine:
        planner = engine.engine.planner
        each = -(-engine.card.context_length // planner.pool_sizes.block_size)

        assert planner.max_sequences == sequences
        assert planner.pool_sizes.blocks == sequences * each


@pytest.mark.parametrize(("kind", "serve"), [("sglang", SglangStandIn), ("openai", OpenAiStandIn)])
def test_a_model_that_the_server_has_not_is_named_beside_what_it_has(
    files: Path, kind: EngineKind, serve: Callable[[], VllmStandIn]
) -> None:
    with (
        serve() as server,
        pytest.raises(EngineError, match=r"^engine_model: the server has no 'rude', but sum$"),
        opened(server, kind, files, "rude"),
    ):
        pass

"""Opens an external engine from the settings: queries the server, and creates the card and a planner of its size."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.config import EngineKind, WorkerSection, WorkerSettings
from fairlane.worker.engine.engine import Engine, OpenedEngine
from fairlane.worker.errors import EngineError
from fairlane.worker.model.files import model_card, resolve
from fairlane.worker.remote.api import Api, EngineUnavailable, Facts
from fairlane.worker.remote.openai import OpenAiApi
from fairlane.worker.remote.pooling import PoolingApi
from fairlane.worker.remote.runner import RemoteRunner
from fairlane.worker.remote.sglang import SglangApi
from fairlane.worker.remote.streams import Streams
from fairlane.worker.remote.vllm import VllmApi

log = logging.getLogger(__name__)

# Time limit for the server's first reply: it may be loading its model.
START_S = 600.0
LOOK_S = 1.0
# Constructors, with URL, key, and the name of a model at the server.
APIS: Mapping[EngineKind, Callable[[str, str | None, str | None], Api]] = {
    "vllm": VllmApi,
    "sglang": SglangApi,
    "openai": OpenAiApi,
}
# Kinds of servers whose facts can be polled without cost.
WATCHED: frozenset[EngineKind] = frozenset({"vllm"})
SGLANG_MOST_PENALTY = 2.0
# Maximum number of blocks per sequence if the server does not report its KV layout; longer ones get larger blocks.
MOST_BLOCKS_EACH = 512


def open_engine(settings: WorkerSettings) -> OpenedEngine:
    """Wait for the server, and open an engine on it. Raises EngineError, ModelError."""
    section = settings.worker
    api, facts = asyncio.run(_find(_apis(section)))
    named = settings.model if settings.model != DEFAULT_MODEL or not facts.root else facts.root
    files = resolve(named, settings.models_directory, with_weights=False)
    card = _card(model_card(files, draws=section.generation_config), facts, section.engine)
    sequences = min(section.max_sequences, facts.sequences or section.max_sequences)
    is_pooling = facts.vector_size is not None
    # A pooling model's job fills the context, and the planner counts a token after it.
    reported, facts = facts, _with_room(facts, card.context_length + is_pooling, sequences)
    log.info("%s %s serves %s", section.engine, facts.version, facts.model)
    log.info("KV cache: %d blocks of %d tokens", facts.blocks, facts.block_size)
    lanes, costs = settings.lanes.lanes(), CostModel()
    watched = reported if section.engine in WATCHED and not is_pooling else None
    streams = Streams(api.serving(card), card.vocab_size, facts=watched, lease_s=settings.lease_s)
    planner = Planner(
        lanes=lanes,
        block_size=facts.block_size,
        blocks=facts.blocks,
        host_slots=0,
        max_sequences=sequences,
        max_step_tokens=section.max_step_tokens,
        costs=costs,
        holds_decodes=False,
    )
    runner = RemoteRunner(
        streams, lanes, secrets.token_hex(4), max_sequences=sequences, resumes_grammars=facts.resumes_grammars
    )
    return OpenedEngine(Engine(planner, runner), card, costs, section.max_step_tokens, streams)


def _with_room(facts: Facts, length: int, sequences: int) -> Facts:
    """If the server does not report its KV blocks, assume as many as its sequences can use."""
    if facts.blocks:
        return facts
    block_size = max(facts.block_size, -(-length // MOST_BLOCKS_EACH))
    return facts._replace(block_size=block_size, blocks=sequences * -(-length // block_size))


def _apis(section: WorkerSection) -> list[Api]:
    """Return the interfaces that a server may have, in the order in which they are tried."""
    server = str(section.engine_url), section.engine_key, section.engine_model
    apis = [PoolingApi(section.engine, *server), APIS[section.engine](*server)]
    # Ollama embeds with every model; vLLM and SGLang only with a model that does not generate.
    return [*reversed(apis)] if section.engine == "openai" else apis


async def _find(apis: Sequence[Api]) -> tuple[Api, Facts]:
    """Wait for the server. Raises the EngineError of its interface for generated text if none fits."""
    end_s, is_logged = asyncio.get_running_loop().time() + START_S, False
    try:
        while True:
            try:
                return await _first(apis)
            except EngineUnavailable as unavailable:
                if asyncio.get_running_loop().time() > end_s:
                    raise EngineError(f"engine_url: no answer within {START_S:.0f} s ({unavailable})") from None
                if not is_logged:
                    log.info("the engine does not answer yet: waiting for it")
                    is_logged = True
            await asyncio.sleep(LOOK_S)
    finally:
        for api in apis:
            await api.close()


async def _first(apis: Sequence[Api]) -> tuple[Api, Facts]:
    errors: list[EngineError] = []
    for api in apis:
        try:
            return api, await api.facts()
        except EngineError as error:
            errors.append(error)
    raise next(error for api, error in zip(apis, errors, strict=True) if not isinstance(api, PoolingApi))


def _card(card: ModelCard, facts: Facts, kind: EngineKind) -> ModelCard:
    length = min(card.context_length, facts.context_length or card.context_length)
    form = "with grammars" if facts.takes_grammars else "without grammars"
    served = f"{facts.root or facts.model} {facts.adapter} {length}"
    if facts.vector_size is not None:
        form = f"{'scores' if facts.scores else 'embeddings'} of {facts.vector_size}"
    words = f"{kind} {facts.version} {served} {form} {card.tokenizer_json}"
    fingerprint = hashlib.sha256(words.encode()).hexdigest()
    return msgspec.structs.replace(
        card,
        model=facts.model,
        context_length=length,
        takes_grammars=facts.takes_grammars,
        fingerprint=fingerprint,
        exact=UNSET if facts.is_exact else False,
        lacks=(*facts.lacks, "close_json"),
        embedding_size=UNSET if facts.vector_size is None else facts.vector_size,
        scores=facts.scores or UNSET,
        drawn=_drawn(card, facts, kind) or UNSET,
        media=dict(facts.media) or UNSET,
    )


def _drawn(card: ModelCard, facts: Facts, kind: EngineKind) -> dict[str, int | float]:
    drawn = {name: value for name, value in card.usual_draw.items() if name not in facts.lacks}
    if kind == "sglang" and drawn.get("repetition_penalty", 1.0) > SGLANG_MOST_PENALTY:
        log.warning("repetition_penalty of generation_config.json is ignored: SGLang does not accept values above 2")
        del drawn["repetition_penalty"]
    return drawn

"""An engine that is a server elsewhere, opened by the settings: what it is, its card, and a planner of its size."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping

import msgspec

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.config import EngineKind, WorkerSettings
from fairlane.worker.engine.engine import Engine, EngineError, OpenedEngine
from fairlane.worker.model.files import model_card, resolve
from fairlane.worker.remote.api import Api, Away, Facts
from fairlane.worker.remote.runner import RemoteRunner
from fairlane.worker.remote.streams import Streams
from fairlane.worker.remote.vllm import VllmApi

log = logging.getLogger(__name__)

START_S = 600.0
"""How long the server may take until it answers: it may be loading its model."""
LOOK_S = 1.0
APIS: Mapping[EngineKind, Callable[[str, str | None], Api]] = {"vllm": VllmApi}


def open_engine(settings: WorkerSettings) -> OpenedEngine:
    """Wait for the server, and make an engine of it. Raises EngineError, ModelError."""
    section = settings.worker
    make = APIS[section.engine]
    url, key = str(section.engine_url), section.engine_key
    facts = asyncio.run(_facts(make(url, key)))
    named = settings.model if settings.model != DEFAULT_MODEL or not facts.root else facts.root
    card = _card(model_card(resolve(named, settings.models_directory)), facts, section.engine)
    log.info("%s %s serves %s: %d blocks of %d tokens", section.engine, facts.version, *_sizes(facts))
    lanes, costs = settings.lanes.lanes(), CostModel()
    streams = Streams(make(url, key), card.vocab_size)
    planner = Planner(
        lanes=lanes,
        block_size=facts.block_size,
        blocks=facts.blocks,
        host_slots=0,
        max_sequences=section.max_sequences,
        max_step_tokens=section.max_step_tokens,
        costs=costs,
    )
    runner = RemoteRunner(streams, lanes, secrets.token_hex(4))
    return OpenedEngine(Engine(planner, runner), card, costs, section.max_step_tokens, streams)


def _sizes(facts: Facts) -> tuple[str, int, int]:
    return facts.model, facts.blocks, facts.block_size


async def _facts(api: Api) -> Facts:
    """What the server says, as soon as it does."""
    end_s, is_told = asyncio.get_running_loop().time() + START_S, False
    try:
        while True:
            try:
                return await api.facts()
            except Away as away:
                if asyncio.get_running_loop().time() > end_s:
                    raise EngineError(f"engine_url: no answer within {START_S:.0f} s ({away})") from None
                if not is_told:
                    log.info("the engine does not answer yet: waiting for it")
                    is_told = True
            await asyncio.sleep(LOOK_S)
    finally:
        await api.close()


def _card(card: ModelCard, facts: Facts, kind: EngineKind) -> ModelCard:
    """The card of the model's files, as this server computes it: workers of servers that are alike share one."""
    length = min(card.context_length, facts.context_length or card.context_length)
    words = f"{kind} {facts.version} {facts.root or facts.model} {length} {card.tokenizer_json}"
    fingerprint = hashlib.sha256(words.encode()).hexdigest()
    return msgspec.structs.replace(
        card, model=facts.model, context_length=length, takes_grammars=False, fingerprint=fingerprint
    )

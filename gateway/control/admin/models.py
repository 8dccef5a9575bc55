"""One model as the console shows it: what it is, and its load by lane."""

from typing import Annotated

from typing_extensions import TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.fleet import ServedModel, queued
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.media import MediaKind
from fairlane.scheduler.protocol.messages import Yields
from fairlane.scheduler.queue.types import LaneDepth


class ModelLane(TypedDict):
    """One lane's work on a model."""

    lane: Annotated[str, about("`latency` or `throughput`")]
    queued: Annotated[int, about("Waiting jobs, also those that a worker took but has not begun")]
    oldest_wait_ms: Annotated[float, about("Longest current wait for a worker")]
    running: Annotated[int, about("Running choices")]
    preempted: Annotated[int, about("Preempted choices")]
    tokens_per_s: Annotated[float, about("Output tokens generated per second")]


class OverviewModel(TypedDict):
    """One model, and the workers that serve it."""

    model: Annotated[str, about("The model's name")]
    workers: Annotated[int, about("Workers that serve it")]
    draining: Annotated[int, about("Workers that take no more jobs")]
    queued: Annotated[int, about("Waiting jobs, also those that a worker took but has not begun")]
    running: Annotated[int, about("Running choices")]
    max_sequences: Annotated[int, about("Choices that its workers run at the same time")]
    blocks_total: Annotated[int, about("KV blocks in the pools of its workers")]
    blocks_free: Annotated[int, about("KV blocks with no data in use")]
    lanes: Annotated[list[ModelLane], about("Its work by lane")]
    context_length: Annotated[int, about("Maximum of prompt and output tokens together")]
    single_stream_ms: Annotated[float, about("Time per output token of a stream that runs alone; 0 until measured")]
    version: Annotated[str, about("Identifies weights, precision and quantisation; empty: not reported")]
    card_sha256: Annotated[list[str], about("Hashes of its workers' cards; several during an update")]
    created_at: Annotated[int, about("Unix seconds; 0: not reported")]
    output: Annotated[Yields, about("What it makes of its input")]
    media: Annotated[list[MediaKind], about("Media that it takes in conversations")]


def model_view(model: ServedModel) -> OverviewModel:
    """Return a model in the API's shape."""
    lanes = [_lane(model, name) for name in LaneName]
    card, serving = model.text.card, [worker for worker in model.workers if not worker.draining]
    return view_of(
        OverviewModel,
        model,
        model=model.name,
        workers=len(serving),
        draining=len(model.workers) - len(serving),
        queued=sum(lane["queued"] for lane in lanes),
        running=sum(sum(worker.running.values()) for worker in model.workers),
        max_sequences=sum(worker.max_sequences for worker in serving),
        blocks_total=sum(worker.blocks_total for worker in model.workers),
        blocks_free=sum(worker.blocks_free for worker in model.workers),
        lanes=lanes,
        version=card.fingerprint,
        card_sha256=sorted({worker.card_sha256 for worker in model.workers}),
        created_at=card.created_s,
        output=card.yields,
        media=sorted(card.media_forms),
    )


def _lane(model: ServedModel, name: LaneName) -> ModelLane:
    depth = model.depths.get(name, LaneDepth(0, 0))
    return view_of(
        ModelLane,
        depth,
        lane=name.value,
        queued=queued(name, depth, model.workers),
        running=sum(worker.running.get(name, 0) for worker in model.workers),
        preempted=sum(worker.preempted.get(name, 0) for worker in model.workers),
        tokens_per_s=sum(worker.tokens_per_s.get(name, 0.0) for worker in model.workers),
    )

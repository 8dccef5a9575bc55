"""Messages between gateways and workers in msgpack: jobs and controls through the store, events over links.

Token ids are the only content, and no `repr` shows them. Times are milliseconds. Durations count from the job's arrival
by the store's clock, so clocks of two machines are never compared."""

import hashlib
import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from fairlane.scheduler.protocol.block_map import WatchBlocks
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.media import MeasureMedia, MediaForm, MediaKind, MediaSpan


class Outcome(StrEnum):
    """The outcome of a request. Its value is used as metric label, log field and ledger entry."""

    REJECTED = "rejected"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    # No remaining worker could have continued it.
    UNAVAILABLE = "unavailable"
    FAILED = "failed"


# Outcomes whose tokens are charged. A rejected request is not counted, and its reservation is released.
CHARGED = frozenset(Outcome) - {Outcome.REJECTED}


# An end-of-sequence token, or `max_tokens`.
FinishReason = Literal["stop", "length"]
# What happens to KV whose blocks are taken: it is swapped to the host, or dropped and recomputed.
YieldMode = Literal["swap", "recompute"]
# `keep`: only the batch slot is lost.
PreemptionMode = Literal["keep"] | YieldMode
# What a preemption frees: KV blocks, batch slots, a step's tokens, or a step's time.
ScarceResource = Literal["blocks", "slots", "tokens", "pace"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Sampling parameters. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    # Keep the k most likely tokens; 0 keeps all.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # 63 bits. The gateway draws it if the caller gave none, so that any worker continues the same stream.
    seed: int = 0
    min_tokens: int = 0
    # Tokens that end a choice; empty with `ignore_eos`.
    stop_token_ids: tuple[int, ...] = ()
    # None: no log-probabilities; k: the chosen token's and those of the k most likely.
    logprobs: int | None = None
    # The same of each prompt token after the first; the prompt is then computed without the prefix cache.
    prompt_logprobs: int | None = None
    # (token id, value added to its score).
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Only these tokens are drawn; empty: all.
    allowed_token_ids: tuple[int, ...] = ()
    # Sequences of tokens: the last is not drawn after the others.
    bad_words: tuple[tuple[int, ...], ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prompt for a worker. It is leased and returned as a whole, and prefilled once for `n` choices."""

    job_id: str
    gateway_id: str
    # Where that gateway accepts links (`scheduler.links.dialer`).
    gateway_address: str = ""
    tenant: str
    # Creation time of the tenant, epoch seconds: a tenant created later with the same id is a different one.
    tenant_since: float = 0.0
    weight: float = 1.0
    # Tenants of one group may reuse each other's cached prompts; empty: only the tenant's own.
    share_group: str = ""
    lane: LaneName
    prompt: tuple[int, ...]
    # Embedding jobs: prompt tokens of each input, in order. Scoring jobs: of both texts of each pair.
    inputs: tuple[int, ...] = ()
    # Images and sounds in the prompt, in order.
    media: tuple[MediaSpan, ...] = ()
    n: int = 1
    # Output tokens per choice.
    max_tokens: int
    # Output tokens per choice that the budget allows so far; a `Grant` raises it. Equals `max_tokens` if the whole
    # request was reserved.
    granted_until: int
    sampling: Sampling = Sampling()
    # Grammar of each choice, in llguidance's form; empty: none.
    grammar: str = ""
    # Compiled size, as the gateway measured it; 0: not known.
    grammar_bytes: int = 0
    # Keep room to close what the grammar has begun before `max_tokens`.
    close_json: bool = False
    # From arrival to the first token: stated, or the lane's target.
    ttft_ms: float
    tpot_ms: float
    # From arrival to the last token, stated by the caller and hard; None: none.
    deadline_ms: float | None = None
    # A stated, hard deadline of the first token; None: none.
    hard_ttft_ms: float | None = None
    guaranteed: bool = False
    # Time per output token that its gateway assumed; 0.0: not known, use `tpot_ms`.
    pace_ms: float = 0.0
    # Guaranteed jobs: time of all workers together until the first token, with a margin.
    claim_ms: float = 0.0
    # Expected time of all workers together; 0.0: not known.
    work_ms: float = 0.0
    # Time per prompt token, as the gateway knew it; 0.0: not known.
    token_ms: float = 0.0
    # Never recompute while the worker lives: swap, or leave it running.
    exact: bool = False
    # Not counted against `queued_requests`: a further job of a request that is counted once, or a line of a batch,
    # which has its own limits.
    follows: bool = False
    # Fingerprint of the prompt, if a later run of the request may continue from this job's output: only with the same
    # fingerprint. Its worker then reports the output to the store when the job ends or returns.
    prompt_print: str = ""
    traceparent: str = ""
    request_id: str = ""

    @property
    def max_total_tokens(self) -> int:
        return len(self.prompt) + self.max_tokens

    @property
    def keeps_output(self) -> bool:
        return bool(self.prompt_print)

    @property
    def states_wait(self) -> bool:
        """Return whether a hard deadline, and not its lane's maximum, bounds the wait for its first token."""
        return self.deadline_ms is not None or self.hard_ttft_ms is not None

    def __repr__(self) -> str:
        return f"Job({self.job_id}, {self.tenant}, {self.lane}, prompt={len(self.prompt)} tokens, n={self.n})"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker holds."""

    job: Job
    # Incremented each time the job is taken; tokens and reports under an older epoch are refused.
    epoch: int
    arrived_ms_ago: float
    # Its gateway may have tokens of it, and must be asked before the job can start.
    started: bool = False
    # Token ids of each choice that its gateway has.
    generated: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        return f"Lease({self.job!r}, epoch={self.epoch}, generated={[len(ids) for ids in self.generated]})"


# Events: from a worker to the job's gateway, in order over their link. Ends that the store decides come from the store.


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token's, and the most likely alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    # Of a prompt token: 1 for the most likely one; 0: not known.
    rank: int = 0

    def __repr__(self) -> str:
        return "PositionLogprobs(…)"


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="token"):
    """New tokens of one choice. A gateway accepts only the next index of each choice."""

    job_id: str
    epoch: int
    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    # Prompt tokens found in the prefix cache. Sent with a choice's first token, or when an external engine reports it.
    cached_tokens: int = 0
    # From arrival to the step that started the prompt. Sent with the first token under a lease.
    queued_ms: float | None = None
    # From the start of that step to the end of the one that made this token. Sent with `queued_ms`.
    prefill_ms: float | None = None
    # Sent with `queued_ms`.
    worker_id: str = ""
    # Embedding and scoring jobs: one vector per input or pair, 32-bit floats, little-endian; sent without tokens.
    embedding: bytes = b""

    def __repr__(self) -> str:
        return f"TokenDelta({self.job_id}/{self.choice} from {self.first_index}, {len(self.token_ids)} tokens)"


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_logprobs"):
    """Log-probabilities of consecutive prompt tokens. All of a prompt precede the job's first token."""

    job_id: str
    # Index in the prompt of the first of them; its token 0 has none.
    first: int
    logprobs: tuple[PositionLogprobs, ...]

    def __repr__(self) -> str:
        return f"PromptLogprobs({self.job_id} from {self.first}, {len(self.logprobs)} tokens)"


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The beneficiary of a preemption, and the resource that it lacked."""

    resource: ScarceResource
    lane: str
    # Empty: the blocks belong to the lane, by its share floor.
    tenant: str = ""
    job_id: str = ""


class Preempted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="preempted"):
    """A choice was preempted; it will resume."""

    job_id: str
    choice: int
    mode: PreemptionMode
    blocks: int
    predicted_ms: float
    # Size of the KV; 0: held by an external engine, which does not report it.
    bytes: int = 0
    # None: an operator or a test preempted it, or a worker of an earlier release did not report it.
    cause: Cause | None = None


class Resumed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="resumed"):
    """A preempted or paused choice runs again. `blocks` and `bytes` are the totals that it lost."""

    job_id: str
    choice: int
    stalled_ms: float
    mode: PreemptionMode = "keep"
    blocks: int = 0
    bytes: int = 0
    predicted_ms: float = 0.0
    cause: Cause | None = None


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """A choice has used up its grant and waits for the next one."""

    job_id: str
    choice: int


class JobSteps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics of a job's steps at the worker that ended it, over all its choices."""

    # From arrival until this worker took it; None: its gateway had tokens of an earlier holder.
    taken_ms: float | None = None
    # From arrival to the step that started its prompt; None: already sent with a token, or never started.
    queued_ms: float | None = None
    prefill_steps: int = 0
    prefill_tokens: int = 0
    decode_steps: int = 0
    # Time for which steps left it out, by the planner's reason; the longest of several choices.
    waits_ms: dict[str, float] = {}
    # Share of the measured step time, by computed tokens, in microseconds; 0: not measured.
    gpu_us: int = 0
    # KV blocks held, multiplied by the time in milliseconds.
    kv_block_ms: int = 0


class Finished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    """The end of a job: its last event."""

    job_id: str
    epoch: int
    outcome: Outcome
    # For the caller if the outcome is `failed`; never holds content.
    error: str = ""
    cached_tokens: int = 0
    preemptions: int = 0
    worker_id: str = ""
    # None: the job never ran, or a worker of an earlier release did not report it.
    steps: JobSteps | None = None


Event = TokenDelta | PromptLogprobs | Preempted | Resumed | Paused | Finished


# Controls: from a gateway to a worker, on the worker's control stream.


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Stop this job within a step and free its blocks."""

    job_id: str


class Grant(msgspec.Struct, frozen=True, kw_only=True, tag="grant"):
    """Raise the number of output tokens that each choice of a job may produce. For the engine."""

    job_id: str
    granted_until: int


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Take no more jobs; finish the running ones or return them to the queue."""


class Undrain(msgspec.Struct, frozen=True, kw_only=True, tag="undrain"):
    """Start taking jobs again."""


class ForgetPrompts(msgspec.Struct, frozen=True, kw_only=True, tag="forget_prompts"):
    """Evict a deleted tenant's cached prompts and compiled grammars, and all cached prompts of its share group."""

    tenant: str
    tenant_since: float
    share_group: str = ""


Control = Cancel | Drain | Undrain | WatchBlocks | ForgetPrompts | MeasureMedia


# Status: published by workers about themselves.


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat of a worker: its identity and its load."""

    worker_id: str
    model: str
    queue: str
    card_sha256: str
    started_at_ms: float
    draining: bool = False
    block_size: int = 16
    blocks_total: int = 0
    blocks_free: int = 0
    host_slots_total: int = 0
    host_slots_free: int = 0
    max_sequences: int = 0
    running: dict[str, int] = {}
    # Sequences taken but not running, including preempted ones, by lane.
    waiting: dict[str, int] = {}
    preempted: dict[str, int] = {}
    tokens_per_s: dict[str, float] = {}
    step_ms: float = 0.0
    # Time per token of a stream that runs alone: one step and the gap between two. 0.0: not measured.
    single_stream_ms: float = 0.0
    # Measured, for display only.
    prefill_tokens_per_s: float = 0.0
    # KV blocks held by running and waiting sequences, for the tenants with the most.
    kv_blocks: dict[str, int] = {}
    # Milliseconds of a step: fixed, per row, prefilled token, KV token read and attention pair. Empty until learnt.
    step_weights: tuple[float, ...] = ()

    @property
    def kv_tokens(self) -> int:
        return self.block_size * self.blocks_total

    @property
    def host_tokens(self) -> int:
        return self.block_size * self.host_slots_total


Yields = Literal["text", "embeddings", "scores"]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a gateway needs to serve a model without its files; immutable, named by its SHA-256. Unset optional
    fields are not encoded, so that a new field does not change the names of existing cards."""

    model: str
    # The fast tokenizer, as `tokenizers.Tokenizer.from_str` reads it.
    tokenizer_json: str
    chat_template: str | None
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token: str | None = None
    eos_token: str | None = None
    created_s: int = 0
    # Some tokenizers do not reveal the text of their tokens, so that no grammar can be enforced.
    takes_grammars: bool = True
    # Identifies the computation: weights, compute type, quantisation. Workers with the same card continue each other's
    # streams.
    fingerprint: str = ""
    # How the model's responses are parsed, as transformers' JSON.
    response_template: str | msgspec.UnsetType = msgspec.UNSET
    # False: the engine reports only text, and the tokens are the tokenizer's encoding of it.
    exact: bool | msgspec.UnsetType = msgspec.UNSET
    lacks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    # Vector size of a model that embeds or scores; unset for a generating model.
    embedding_size: int | msgspec.UnsetType = msgspec.UNSET
    # True: its vectors are the scores of pairs of texts.
    scores: bool | msgspec.UnsetType = msgspec.UNSET
    # Shards of the model's queue (`scheduler.queue.shards`); unset: one.
    shards: int | msgspec.UnsetType = msgspec.UNSET
    # The authors' recommended `Sampling` fields, for requests that do not set them.
    drawn: dict[str, int | float] | msgspec.UnsetType = msgspec.UNSET
    # The kinds of media that its engine takes in conversations; unset: none.
    media: dict[MediaKind, MediaForm] | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_exact(self) -> bool:
        return self.exact is not False

    @property
    def yields(self) -> Yields:
        """Return what the model makes of its input."""
        if self.embedding_size is msgspec.UNSET:
            return "text"
        return "scores" if self.scores is True else "embeddings"

    @property
    def refused_fields(self) -> tuple[str, ...]:
        return self.lacks if isinstance(self.lacks, tuple) else ()

    @property
    def media_forms(self) -> dict[MediaKind, MediaForm]:
        return self.media if isinstance(self.media, dict) else {}

    @property
    def usual_draw(self) -> dict[str, int | float]:
        return self.drawn if isinstance(self.drawn, dict) else {}

    @property
    def system_fingerprint(self) -> str:
        """Return OpenAI's `system_fingerprint`: the same value, seed and request give the same output."""
        drawn = repr(sorted(self.usual_draw.items())) if self.usual_draw else ""
        whole = hashlib.sha256((self.fingerprint + drawn).encode()).hexdigest() if drawn else self.fingerprint
        return f"fp_{whole[:12]}"

    def __repr__(self) -> str:
        return f"ModelCard({self.model}, context_length={self.context_length})"


_encoder = msgspec.msgpack.Encoder()
_end: msgspec.msgpack.Decoder[Finished] = msgspec.msgpack.Decoder(Finished)
_control: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(message: msgspec.Struct) -> bytes:
    """Return the wire form of any message."""
    return _encoder.encode(message)


log = logging.getLogger(__name__)

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Message = TypeVar("Message")


def ends_of(blobs: Iterable[bytes]) -> list[Finished]:
    """Decode entries of a gateway's stream, one end each. Skips damaged ones."""
    return _sound(_end.decode, blobs)


def controls_of(blobs: Iterable[bytes]) -> list[Control]:
    """Decode entries of a worker's stream, one command each. Skips damaged ones."""
    return _sound(_control.decode, blobs)


def _sound(decode: Callable[[bytes], Message], blobs: Iterable[bytes]) -> list[Message]:
    found = []
    for blob in blobs:
        try:
            found.append(decode(blob))
        except UNREADABLE as error:
            log.error("unreadable message dropped: bytes=%d error=%s", len(blob), type(error).__name__)
    return found

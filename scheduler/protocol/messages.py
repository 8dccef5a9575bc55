"""All that crosses a process: what gateway and worker say to each other, through the store, in msgpack.

Every message is frozen and small, holds no tensor and no secret, and its `repr` never shows prompt or output tokens.
Token ids are the only content; text stays in the gateway. Times are milliseconds. A duration counts from the
job's arrival as the store's clock saw it, so no two machines' clocks are ever compared. A message that cannot be read
is lost to its own request, and does not stop the stream for the others.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Literal, TypeVar

import msgspec

from fairlane.scheduler.protocol.block_map import WatchBlocks
from fairlane.scheduler.protocol.lanes import LaneName


class Outcome(StrEnum):
    """The one end of a request. The value is the metric label, the log field and the ledger entry."""

    REJECTED = "rejected"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNAVAILABLE = "unavailable"
    """The workers that could have gone on with it went."""
    FAILED = "failed"


CHARGED = frozenset(Outcome) - {Outcome.REJECTED}
"""By these, published tokens are charged; else the reservation is given back and the request is not counted."""


FinishReason = Literal["stop", "length"]
"""Why a choice ended by itself: an end-of-sequence token, or its `max_tokens`."""
YieldMode = Literal["swap", "recompute"]
"""What becomes of KV whose blocks are taken: it goes to the host, or is computed again."""
PreemptionMode = Literal["keep"] | YieldMode
"""`keep`: only the batch slot is lost."""
ScarceResource = Literal["blocks", "slots", "tokens", "pace"]
"""What a preemption makes room in: KV blocks, the batch, the tokens of a step, or the time of one."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """Drawn by the gateway where the caller gave none, so that any worker continues alike. 63 bits."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a choice; empty with `ignore_eos`."""
    logprobs: int | None = None
    """None: no log-probabilities; k: the chosen token's and those of the k likeliest."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the scores of these tokens."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt on its way to a worker; leased and returned whole, prefilled once for `n` choices."""

    job_id: str
    gateway_id: str
    """Whose delta stream the answers go to."""
    tenant: str
    tenant_since: float = 0.0
    """When that was made, epoch seconds: one of the same id that was made later is another."""
    weight: float = 1.0
    """The tenant's share against other tenants of the lane."""
    share_group: str = ""
    """Tenants of one group may reuse each other's cached prompts; empty: a tenant only its own."""
    lane: LaneName
    prompt: tuple[int, ...]
    inputs: tuple[int, ...] = ()
    """Of an embedder's job: how many of the prompt's tokens each of its inputs has, in order."""
    n: int = 1
    max_tokens: int
    """Output tokens per choice."""
    granted_until: int
    """Output tokens per choice that the budget allows so far; a `Grant` raises it. Equals `max_tokens` where
    the whole request was reserved."""
    sampling: Sampling = Sampling()
    grammar: str = ""
    """What each choice has to be, as llguidance reads it; empty: anything."""
    grammar_bytes: int = 0
    """Memory that the grammar takes compiled, as its gateway measured it; 0: not known."""
    ttft_ms: float
    """From arrival to the first token: stated, or the lane's target."""
    tpot_ms: float
    deadline_ms: float | None = None
    """From arrival to the last token, stated by the caller and hard; None: none."""
    hard_ttft_ms: float | None = None
    """A stated, hard deadline of the first token; None: none."""
    guaranteed: bool = False
    pace_ms: float = 0.0
    """What a token takes at the pace that its gateway reckoned with; 0.0: the gateway knew none, `tpot_ms` has to
    do.
    """
    claim_ms: float = 0.0
    """Where it is guaranteed: the time of all workers together that it needs until its first token, with a margin."""
    work_ms: float = 0.0
    """The time of all workers together that it is expected to take in all; 0.0: its gateway could not tell."""
    token_ms: float = 0.0
    """What a token of a prompt takes, by what its gateway knew; 0.0: nothing."""
    exact: bool = False
    """Never recompute while the worker lives: swap, or leave it running."""
    follows: bool = False
    """It does not count against `queued_requests`: it is not the first job of its request, which waits as long as the
    first does and counts once; or it is a line of a batch, which has limits of its own."""
    prompt_print: str = ""
    """What tells its prompt from others, where a later run of the same request may go on from its tokens."""
    traceparent: str = ""
    request_id: str = ""
    """As the answer's `x-request-id` names it; for the log."""

    @property
    def max_total_tokens(self) -> int:
        """KV tokens that one choice can grow to."""
        return len(self.prompt) + self.max_tokens

    @property
    def states_wait(self) -> bool:
        """A hard deadline bounds how long it may wait for its first token: then no maximum of its lane does."""
        return self.deadline_ms is not None or self.hard_ttft_ms is not None

    def __repr__(self) -> str:
        return f"Job({self.job_id}, {self.tenant}, {self.lane}, prompt={len(self.prompt)} tokens, n={self.n})"


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a worker's hands, with what earlier holders have already published of it."""

    job: Job
    epoch: int
    """Grows with every taking; what is published under an older one is refused."""
    arrived_ms_ago: float
    generated: tuple[tuple[int, ...], ...] = ()
    """Published token ids of each choice."""

    def __repr__(self) -> str:
        return f"Lease({self.job!r}, epoch={self.epoch}, generated={[len(ids) for ids in self.generated]})"


# What a worker says to a gateway: the gateway's delta stream, in order.


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token's, and the likeliest alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...]

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
    cached_tokens: int = 0
    """Prompt tokens of the job that the prefix cache had; said with a choice's first token, or with the one by which
    an engine elsewhere has told it."""
    queued_ms: float | None = None
    """From the job's arrival to the step in which its prompt was begun; said with its first token under a lease."""
    prefill_ms: float | None = None
    """From the beginning of that step to the end of the one that made this token; said as `queued_ms`."""
    worker_id: str = ""
    """Who computes it; said as `queued_ms`."""
    embedding: bytes = b""
    """The vectors of an embedder's job, one for each input, of 32-bit floats, little-endian: they come alone, and no
    token does."""

    def __repr__(self) -> str:
        return f"TokenDelta({self.job_id}/{self.choice} from {self.first_index}, {len(self.token_ids)} tokens)"


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For whom a choice had to yield, and what that one lacked."""

    resource: ScarceResource
    lane: str
    tenant: str = ""
    """Empty: the blocks are the lane's own, by its share floor."""
    job_id: str = ""


class Preempted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="preempted"):
    """A choice had to yield its KV blocks; it will resume."""

    job_id: str
    choice: int
    mode: PreemptionMode
    blocks: int
    predicted_ms: float
    """What the cost model expects the way back to cost."""
    bytes: int = 0
    """Of KV in these blocks; 0: an engine elsewhere has them, and does not say."""
    cause: Cause | None = None
    """None: nobody's; an operator's or a test's, or a worker of an earlier release did not say."""


class Resumed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="resumed"):
    """A preempted or paused choice runs again. What it gave up while it was away, said then or not, is told in sum."""

    job_id: str
    choice: int
    stalled_ms: float
    mode: PreemptionMode = "keep"
    """How it gave up the last of it."""
    blocks: int = 0
    bytes: int = 0
    predicted_ms: float = 0.0
    cause: Cause | None = None
    """To whom it gave up the last of it."""


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """A choice has used up its grant and waits for the next."""

    job_id: str
    choice: int


class JobSteps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job's steps at the worker that ended it came to, over all its choices."""

    taken_ms: float | None = None
    """From the job's arrival until this worker took it; None: an earlier holder had published tokens of it."""
    queued_ms: float | None = None
    """From the job's arrival to the step in which its prompt was begun; None: a token has said it, or none was."""
    prefill_steps: int = 0
    prefill_tokens: int = 0
    """Tokens that these steps computed; recomputed ones too."""
    decode_steps: int = 0
    waits_ms: dict[str, float] = {}
    """How long it had no part in a step, by the planner's reason; of several choices the one that waited longest."""
    gpu_us: int = 0
    """Its share of the measured time of its steps, by computed tokens, in microseconds; 0: nobody measured."""
    kv_block_ms: int = 0
    """KV blocks that it held, times how long, in milliseconds."""


class Finished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finished"):
    """The end of a job: nothing of it follows."""

    job_id: str
    epoch: int
    outcome: Outcome
    error: str = ""
    """For the caller, where the outcome is `failed`; never holds content."""
    cached_tokens: int = 0
    preemptions: int = 0
    worker_id: str = ""
    steps: JobSteps | None = None
    """None: it never ran, or a worker of an earlier release did not say."""


Event = TokenDelta | Preempted | Resumed | Paused | Finished


# What a gateway says to a worker: the worker's control stream.


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Stop this job within a step and free its blocks."""

    job_id: str


class Grant(msgspec.Struct, frozen=True, kw_only=True, tag="grant"):
    """Each choice of this job may now produce up to `granted_until` output tokens."""

    job_id: str
    granted_until: int


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Take no more jobs; finish or hand back what runs."""


class Undrain(msgspec.Struct, frozen=True, kw_only=True, tag="undrain"):
    """Take jobs again."""


class ForgetPrompts(msgspec.Struct, frozen=True, kw_only=True, tag="forget_prompts"):
    """Evict a deleted tenant's cached prompts and compiled grammars, and all cached prompts of its share group."""

    tenant: str
    tenant_since: float
    share_group: str = ""


Control = Cancel | Grant | Drain | Undrain | WatchBlocks | ForgetPrompts


# What a worker says about itself.


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One heartbeat: what the worker is, and how full."""

    worker_id: str
    model: str
    queue: str
    """Name of the (model, card) queue it serves."""
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
    """Sequences running, by lane."""
    waiting: dict[str, int] = {}
    """Sequences taken but not running (preempted ones too), by lane."""
    preempted: dict[str, int] = {}
    tokens_per_s: dict[str, float] = {}
    step_ms: float = 0.0
    """Recent time of one step."""
    single_stream_ms: float = 0.0
    """What a further token takes a stream that is alone here: a step, and what lies between two. 0.0: not measured."""
    prefill_tokens_per_s: float = 0.0
    """Measured prefill rate, for people."""
    kv_blocks: dict[str, int] = {}
    """KV blocks that running and waiting sequences hold, of the tenants with most of them."""
    step_weights: tuple[float, ...] = ()
    """What a step takes in ms: whatever it holds, and per row, prefilled token, KV token read and attention pair. Empty
    before the worker has learnt it."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit the whole KV pool."""
        return self.block_size * self.blocks_total

    @property
    def host_tokens(self) -> int:
        """Tokens that fit the whole host pool."""
        return self.block_size * self.host_slots_total


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """All a gateway needs to speak for a model, without its files; immutable, named by its SHA-256."""

    model: str
    """The name that clients use."""
    tokenizer_json: str
    """The fast tokenizer, as `tokenizers.Tokenizer.from_str` reads it."""
    chat_template: str | None
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token: str | None = None
    eos_token: str | None = None
    created_s: int = 0
    takes_grammars: bool = True
    """Whether its workers keep answers to a grammar: not every tokenizer says what its tokens spell."""
    fingerprint: str = ""
    """Of what the model computes: its weights, the type that is computed in, the quantisation. Workers that share a
    card go on with each other's streams."""
    response_template: str | msgspec.UnsetType = msgspec.UNSET
    """How the model's answers are read, as transformers' JSON; unset (and then no part of the card, which is named by
    its bytes) where none came with the model."""
    exact: bool | msgspec.UnsetType = msgspec.UNSET
    """False where the workers' engine says text alone: its tokens are those by which the model's tokenizer spells it.
    Else unset, as above."""
    lacks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Fields of a request that the workers' engine does not take; unset, as above, where it takes all."""
    embedding_size: int | msgspec.UnsetType = msgspec.UNSET
    """Numbers of the vectors of an embedder; unset, as above, of a model that generates."""
    drawn: dict[str, int | float] | msgspec.UnsetType = msgspec.UNSET
    """Fields of `Sampling` as the model's authors would have them where a request says nothing; unset, as above, where
    they say nothing either."""

    @property
    def is_exact(self) -> bool:
        """Tokens are told as they were drawn."""
        return self.exact is not False

    @property
    def is_embedder(self) -> bool:
        """It makes vectors of texts, and generates nothing."""
        return self.embedding_size is not msgspec.UNSET

    @property
    def refused_fields(self) -> tuple[str, ...]:
        """What it lacks, as far as anything."""
        return self.lacks if isinstance(self.lacks, tuple) else ()

    @property
    def usual_draw(self) -> dict[str, int | float]:
        """What its authors say of how tokens are drawn, as far as anything."""
        return self.drawn if isinstance(self.drawn, dict) else {}

    @property
    def system_fingerprint(self) -> str:
        """As OpenAI's answers have one: with this, a seed and a request the same, the output is the same."""
        drawn = repr(sorted(self.usual_draw.items())) if self.usual_draw else ""
        whole = hashlib.sha256((self.fingerprint + drawn).encode()).hexdigest() if drawn else self.fingerprint
        return f"fp_{whole[:12]}"

    def __repr__(self) -> str:
        return f"ModelCard({self.model}, context_length={self.context_length})"


_encoder = msgspec.msgpack.Encoder()
_event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_control: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode(message: msgspec.Struct) -> bytes:
    """The wire form of any message."""
    return _encoder.encode(message)


def decode_event(data: bytes) -> Event:
    """An entry of a gateway's delta stream. Raises `msgspec.ValidationError` where it is none."""
    return _event.decode(data)


def decode_control(data: bytes) -> Control:
    """An entry of a worker's control stream. Raises `msgspec.ValidationError` where it is none."""
    return _control.decode(data)


log = logging.getLogger(__name__)

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Message = TypeVar("Message")
_events: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])
_parts: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])


def events_of(blobs: Iterable[bytes]) -> list[Event]:
    """Entries of a gateway's stream, each the events of one job's step."""
    found: list[Event] = []
    for blob in blobs:
        try:
            found += _events.decode(blob)
        except UNREADABLE:
            parts = [bytes(part) for parts in _sound(_parts.decode, [blob]) for part in parts]
            found += _sound(decode_event, parts)
    return found


def controls_of(blobs: Iterable[bytes]) -> list[Control]:
    """Entries of a worker's stream, each one command."""
    return _sound(decode_control, blobs)


def _sound(decode: Callable[[bytes], Message], blobs: Iterable[bytes]) -> list[Message]:
    found = []
    for blob in blobs:
        try:
            found.append(decode(blob))
        except UNREADABLE as error:
            log.error("a message of %d bytes cannot be read (%s)", len(blob), type(error).__name__)
    return found

"""Log-probabilities of a prompt, which servers return only with a whole reply: one token is generated for it, and the
stream that follows finds the prompt in the server's prefix cache."""

from collections.abc import Mapping, Sequence

import msgspec

from fairlane.scheduler.protocol.messages import PositionLogprobs
from fairlane.worker.remote.api import ProtocolViolation


class RankedLogProb(msgspec.Struct):
    """vLLM's log-probability of a token."""

    logprob: float
    rank: int | None = None


# By token id; null for the first token.
VllmPrompt = list[dict[int, RankedLogProb] | None]


def read_vllm(prompt: Sequence[int], found: VllmPrompt | None, most: int) -> list[PositionLogprobs]:
    """Convert vLLM's `prompt_logprobs`. Raises ProtocolViolation."""
    if found is None or len(found) != len(prompt):
        raise missing()
    return [_read_position(token_id, one, most) for token_id, one in zip(prompt[1:], found[1:], strict=True)]


def _read_position(token_id: int, found: Mapping[int, RankedLogProb] | None, most: int) -> PositionLogprobs:
    own = (found or {}).get(token_id)
    if found is None or own is None:
        raise missing()
    ranked = sorted(found.items(), key=lambda pair: -pair[1].logprob)
    return PositionLogprobs(own.logprob, tuple((other, one.logprob) for other, one in ranked[:most]), own.rank or 0)


def missing() -> ProtocolViolation:
    """Return the error for a reply without them."""
    return ProtocolViolation("log-probabilities of the prompt are missing")

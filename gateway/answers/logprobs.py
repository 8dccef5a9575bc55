"""Log-probabilities as chat completions, plain completions and vLLM's `prompt_logprobs` have them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import PositionLogprobs

# Log-probability of an impossible token, as in OpenAI's API: JSON has no infinity.
LOGPROB_MIN = -9999.0
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How log-probabilities name a model's tokens: by their text, or by id as in vLLM's `token_id:5`."""

    text: TextModel
    by_id: bool = False

    def chat(self, token_id: int, logprob: float) -> Json:
        name = f"token_id:{token_id}" if self.by_id else self.text.token_name(token_id)[0]
        return {"token": name, "logprob": _finite(logprob), "bytes": list(self.text.token_bytes(token_id))}

    def completion(self, token_id: int) -> str:
        if self.by_id:
            return f"token_id:{token_id}"
        name, is_partial = self.text.token_name(token_id)
        return f"bytes:{name}" if is_partial else name

    def characters(self, token_ids: Sequence[int]) -> list[int]:
        """Return the number of characters that begin in each token."""
        return [sum([byte & 0xC0 != 0x80 for byte in self.text.token_bytes(token_id)]) for token_id in token_ids]


def chat_logprobs(names: TokenNames, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]) -> Json:
    """Return `logprobs` of a chat choice or chunk. Both sequences have one entry per token."""
    content = []
    for token_id, drawn in zip(token_ids, logprobs, strict=True):
        top = [names.chat(other, logprob) for other, logprob in drawn.top]
        content.append({**names.chat(token_id, drawn.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    names: TokenNames, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs | None], text_offset: int
) -> Json:
    """Return `logprobs` of a completion choice or chunk. `text_offset`: characters of the choice that precede these
    tokens. The first token of a prompt has none."""
    lengths = names.characters(token_ids)
    pairs = list(zip(token_ids, logprobs, strict=True))
    return {
        "tokens": [names.completion(token_id) for token_id in token_ids],
        "token_logprobs": [None if drawn is None else _finite(drawn.logprob) for drawn in logprobs],
        "top_logprobs": [None if drawn is None else _most_likely(names, token_id, drawn) for token_id, drawn in pairs],
        "text_offset": list(itertools.accumulate(lengths, initial=text_offset))[: len(token_ids)],
    }


def _most_likely(names: TokenNames, token_id: int, drawn: PositionLogprobs) -> dict[str, float]:
    """Return the most likely tokens and the chosen one, best first. Of tokens with one name the best counts."""
    found: dict[str, float] = {}
    for other, logprob in (*drawn.top, (token_id, drawn.logprob)):
        found.setdefault(names.completion(other), _finite(logprob))
    return found


def prompt_logprobs(
    text: TextModel, prompt: Sequence[int], logprobs: Sequence[PositionLogprobs], most: int
) -> list[dict[str, Json] | None]:
    """Return vLLM's `prompt_logprobs`: for each token after the first, itself and the `most` most likely, by id."""
    found: list[dict[str, Json] | None] = [None]
    for token_id, drawn in zip(prompt[1:], logprobs, strict=True):
        ranked = [(token_id, drawn.logprob, drawn.rank)]
        ranked += [(other, logprob, rank) for rank, (other, logprob) in enumerate(drawn.top[:most], 1)]
        found.append(
            {
                str(other): {"logprob": _finite(logprob), "rank": rank or None, "decoded_token": text.token_text(other)}
                for other, logprob, rank in reversed(ranked)
            }
        )
    return found


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)

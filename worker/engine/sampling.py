"""Sampling: draws the next token of many sequences at once.

Filters select by value, never by rank, so that ties cannot make the result depend on the rest of the batch. A draw is a
pure function of (seed, choice, output index), so that any worker can continue a job at any time."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from fairlane.scheduler.protocol.messages import PositionLogprobs, Sampling
from fairlane.worker.engine.grammar import Mask
from fairlane.worker.model.interface import Likeliest

# Initial capacity of `TokenCounts`, in distinct tokens.
_FIRST_ROOM = 64
Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
BROKEN_LOGITS = "the model's output for this request contains NaN or infinity"
# Minimum temperature; smaller ones would round to 0 in single precision.
_COLDEST = 1e-6
# Minimum repetition penalty, for the same reason.
_LEAST_PENALTY = 0.01
_MASK64 = 2**64 - 1
_GOLDEN, _FIRST_MIX, _SECOND_MIX = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
# How many of the most likely tokens are sorted to find a nucleus, before the whole vocabulary is sorted.
_NUCLEUS_GUESSES = (256, 4096)
# Tokens per stretch of the vocabulary: a draw first sums the weights of whole stretches, then of single tokens.
_STRETCH = 256


class TokenCounts:
    """Distinct tokens in the order of their first appearance, with their counts; both arrays are views."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._places: dict[int, int] = {}
        self._tokens = np.zeros(_FIRST_ROOM, np.int64)
        self._counts = np.zeros(_FIRST_ROOM, np.float32)
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[place] = token_id
        self._counts[place] += 1.0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._tokens[: len(self)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: len(self)]


class TokenHistory:
    """The tokens of one choice. Counts are built on first use, and updated with each token from then on."""

    def __init__(self, prompt: Sequence[int], generated: Iterable[int] = ()) -> None:
        self._prompt = prompt
        self._generated = [*generated]
        self._asked_for: list[TokenCounts] = []

    @property
    def length(self) -> int:
        return len(self._generated)

    @cached_property
    def generated(self) -> TokenCounts:
        return self._count(self._generated)

    @cached_property
    def seen(self) -> TokenCounts:
        return self._count((*self._prompt, *self._generated))

    def ends_with(self, token_ids: Sequence[int]) -> bool:
        """Return whether the generated tokens do."""
        return self._generated[len(self._generated) - len(token_ids) :] == [*token_ids]

    def append(self, token_id: int) -> None:
        self._generated.append(token_id)
        for counts in self._asked_for:
            counts.add(token_id)

    def _count(self, token_ids: Iterable[int]) -> TokenCounts:
        counts = TokenCounts(token_ids)
        self._asked_for.append(counts)
        return counts


class TokenDraw(NamedTuple):
    """The parameters of one row's draw."""

    sampling: Sampling
    choice: int
    output_index: int
    history: TokenHistory
    mask: Mask | None = None


class Drawn(NamedTuple):
    """The results by row number."""

    tokens: Mapping[int, int]
    failed: Mapping[int, str]
    logprobs: Mapping[int, PositionLogprobs]


def is_plain(sampling: Sampling) -> bool:
    """Return whether only the most likely token is ever needed, so that its rows need no `TokenDraw`."""
    has_min_length = sampling.min_tokens > 0 and bool(sampling.stop_token_ids)
    shapes = _penalises(sampling) or has_min_length or bool(sampling.logit_bias) or _restricts(sampling)
    return sampling.temperature <= 0 and sampling.logprobs is None and not shapes


def draw_tokens(logits: torch.Tensor, draws: Sequence[TokenDraw | None], known: Likeliest | None = None) -> Drawn:
    """Draw one token for each row of `logits` [rows, vocabulary]; the most likely where there is no draw.

    A row with NaN or +inf fails without the others. Log-probabilities are the model's own, before penalties and
    filters."""
    likeliest = known or find_likeliest(logits)
    chosen: list[int] = likeliest.tokens.tolist()
    failed = {row: BROKEN_LOGITS for row, value in enumerate(likeliest.logits.tolist()) if not isfinite(value)}
    asked = {row: draw for row, draw in enumerate(draws) if draw is not None and row not in failed}
    left = {row: draw for row, draw in asked.items() if not _is_settled(draw, chosen[row])}
    logprobs: dict[int, PositionLogprobs] = {}
    if left:
        rows, wanted = [*left], [*left.values()]
        scores = (logits if len(rows) == len(logits) else logits[rows]).float()
        found = _draw_asked(scores, wanted, [chosen[row] for row in rows])
        for place, row in enumerate(rows):
            chosen[row] = found[place]
        counts = {place: draw.sampling.logprobs for place, draw in enumerate(wanted)}
        asking = {place: count for place, count in counts.items() if count is not None}
        if asking:
            ranked = rank_tokens(scores[[*asking]], [found[place] for place in asking], [*asking.values()])
            logprobs = {rows[place]: logprob for place, logprob in zip(asking, ranked, strict=True)}
    return Drawn({row: token for row, token in enumerate(chosen) if row not in failed}, failed, logprobs)


def find_likeliest(logits: torch.Tensor) -> Likeliest:
    """Return the most likely token and its logit for each row of `logits` [rows, vocabulary]."""
    return Likeliest(*reversed(logits.float().max(-1)))  # several times faster than on bfloat16


def _is_settled(draw: TokenDraw, likeliest: int) -> bool:
    if not is_plain(draw.sampling):
        return False
    return draw.mask is None or bool(draw.mask.bits[likeliest >> 3] >> (likeliest & 7) & 1)


def _draw_asked(scores: torch.Tensor, draws: Sequence[TokenDraw], likeliest: Sequence[int]) -> list[int]:
    chosen = [*likeliest]
    shaped = {row: draw for row, draw in enumerate(draws) if _is_shaped(draw)}
    random = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
    adjusted = _adjusted(scores, shaped) if shaped else scores
    greedy = [row for row in shaped if draws[row].sampling.temperature <= 0]
    for rows, found in (
        (greedy, adjusted.argmax(-1)[greedy].tolist() if greedy else []),
        (random, _pick(adjusted[random], [draws[row] for row in random]) if random else []),
    ):
        for row, token in zip(rows, found, strict=True):
            chosen[row] = token
    return chosen


def uniform(seeds: Sequence[int], choices: Sequence[int], output_indexes: Sequence[int]) -> list[float]:
    """Return numbers in [0, 1) that depend only on their own arguments: three rounds of splitmix64, 53 bits."""
    state = np.zeros(len(seeds), np.uint64)
    for words in (seeds, choices, output_indexes):
        state = _splitmix64(state ^ np.array([word & _MASK64 for word in words], np.uint64))
    found: list[float] = ((state >> np.uint64(11)).astype(np.float64) / 2.0**53).tolist()
    return found


def _splitmix64(words: Words) -> Words:
    # Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST_MIX
    words = (words ^ (words >> np.uint64(27))) * _SECOND_MIX
    return words ^ (words >> np.uint64(31))


def _penalises(sampling: Sampling) -> bool:
    s = sampling
    return s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0


def _restricts(sampling: Sampling) -> bool:
    return bool(sampling.allowed_token_ids or sampling.bad_words)


def _must_continue(draw: TokenDraw) -> bool:
    is_short = draw.output_index < draw.sampling.min_tokens and bool(draw.sampling.stop_token_ids)
    return is_short and not (draw.mask is not None and draw.mask.must_end)


def _is_shaped(draw: TokenDraw) -> bool:
    sampling = draw.sampling
    is_changed = bool(sampling.logit_bias) or _penalises(sampling) or _restricts(sampling)
    return draw.mask is not None or is_changed or _must_continue(draw)


def _adjusted(scores: torch.Tensor, draws: Mapping[int, TokenDraw]) -> torch.Tensor:
    adjusted = scores.clone()
    _add_biases(adjusted, {row: draw for row, draw in draws.items() if draw.sampling.logit_bias})
    _penalise_repetition(adjusted, {r: d for r, d in draws.items() if d.sampling.repetition_penalty != 1.0})
    counted = {r: d for r, d in draws.items() if d.sampling.presence_penalty or d.sampling.frequency_penalty}
    _penalise_output(adjusted, {row: draw for row, draw in counted.items() if draw.history.length})
    suppressed = {row: np.array(d.sampling.stop_token_ids, np.int64) for row, d in draws.items() if _must_continue(d)}
    if suppressed:
        adjusted[_places(suppressed, adjusted.device)] = float("-inf")
    _apply_masks(adjusted, {row: draw.mask for row, draw in draws.items() if draw.mask is not None})
    for row, draw in draws.items():
        if _restricts(draw.sampling):
            _restrict(adjusted[row], draw)
    return adjusted


def _restrict(scores: torch.Tensor, draw: TokenDraw) -> None:
    """Exclude tokens from one row. A restriction that a grammar leaves no token for is ignored."""
    sampling, restricted = draw.sampling, list[torch.Tensor]()
    if sampling.allowed_token_ids:
        allowed = torch.tensor(sampling.allowed_token_ids, device=scores.device)
        restricted.append(torch.ones_like(scores, dtype=torch.bool).index_fill_(0, allowed, False))
    banned = [word[-1] for word in sampling.bad_words if draw.history.ends_with(word[:-1])]
    if banned:
        excluded = torch.zeros_like(scores, dtype=torch.bool)
        restricted.append(excluded.index_fill_(0, torch.tensor(banned, device=scores.device), True))
    for mask in restricted:
        left = scores.masked_fill(mask, float("-inf"))
        if left.amax() > float("-inf"):
            scores.copy_(left)


def _apply_masks(scores: torch.Tensor, masks: Mapping[int, Mask]) -> None:
    if masks:
        bits = np.zeros((len(scores), next(iter(masks.values())).bits.size), np.uint8)
        bits[[*masks]] = [~mask.bits for mask in masks.values()]
        scores.masked_fill_(_unpacked(bits, scores.device)[:, : scores.shape[1]], float("-inf"))


def _unpacked(bits: npt.NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(bits, axis=1, bitorder="little").view(np.bool_))
    places = torch.arange(8, dtype=torch.uint8, device=device)
    return ((torch.from_numpy(bits).to(device)[:, :, None] >> places) & 1).view(len(bits), -1).bool()


def _add_biases(scores: torch.Tensor, draws: Mapping[int, TokenDraw]) -> None:
    if draws:
        biases = {row: draw.sampling.logit_bias for row, draw in draws.items()}
        tokens = {row: np.array([token for token, _ in pairs], np.int64) for row, pairs in biases.items()}
        added = np.array([bias for pairs in biases.values() for _, bias in pairs], np.float32)
        scores[_places(tokens, scores.device)] += torch.from_numpy(added).to(scores.device)


def _penalise_repetition(scores: torch.Tensor, draws: Mapping[int, TokenDraw]) -> None:
    # Keskar et al., CTRL.
    if draws:
        seen = {row: draw.history.seen.tokens for row, draw in draws.items()}
        penalties = [max(draw.sampling.repetition_penalty, _LEAST_PENALTY) for draw in draws.values()]
        places, penalty = _places(seen, scores.device), _repeated(scores, penalties, seen)
        found = scores[places]
        scores[places] = torch.where(found > 0, found / penalty, found * penalty)


def _penalise_output(scores: torch.Tensor, draws: Mapping[int, TokenDraw]) -> None:
    if draws:
        counted = {row: draw.history.generated for row, draw in draws.items()}
        tokens = {row: counts.tokens for row, counts in counted.items()}
        times = torch.from_numpy(np.concatenate([counts.counts for counts in counted.values()])).to(scores.device)
        presence = _repeated(scores, [draw.sampling.presence_penalty for draw in draws.values()], tokens)
        frequency = _repeated(scores, [draw.sampling.frequency_penalty for draw in draws.values()], tokens)
        scores[_places(tokens, scores.device)] -= presence + frequency * times


def _places(tokens: Mapping[int, Numbers], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.repeat(np.array([*tokens], np.int64), [len(found) for found in tokens.values()])
    return torch.from_numpy(rows).to(device), torch.from_numpy(np.concatenate([*tokens.values()])).to(device)


def _repeated(like: torch.Tensor, values: Sequence[float], tokens: Mapping[int, Numbers]) -> torch.Tensor:
    column = np.repeat(np.array(values, np.float32), [len(found) for found in tokens.values()])
    return torch.from_numpy(column).to(like.device)


def _pick(scores: torch.Tensor, draws: Sequence[TokenDraw]) -> list[int]:
    """Sample from the filtered distribution by inverse transform, in the order of token ids. Consumes `scores`.

    First the stretch of the vocabulary that contains the draw, then the token within it, which is faster."""
    weights = _weights(scores, [draw.sampling for draw in draws])
    stretches = pad(weights, (0, -weights.shape[1] % _STRETCH)).view(len(draws), -1, _STRETCH)
    upto = stretches.sum(-1).cumsum(-1, dtype=torch.float64)
    numbers = uniform([d.sampling.seed for d in draws], [d.choice for d in draws], [d.output_index for d in draws])
    wanted = upto[:, -1] * _column(upto, numbers)
    stretch = _first_above(upto, wanted)
    wanted -= (upto - upto.diff(dim=-1, prepend=torch.zeros_like(upto[:, :1]))).gather(1, stretch)[:, 0]
    inside = stretches[torch.arange(len(draws), device=weights.device), stretch[:, 0]].cumsum(-1, dtype=torch.float64)
    found: list[int] = (stretch * _STRETCH + _first_above(inside, wanted))[:, 0].tolist()
    return found


def _first_above(cumulative: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    total = cumulative[:, -1]
    below = torch.minimum(wanted, total.nextafter(torch.zeros_like(total))).clamp_(min=0)
    return torch.searchsorted(cumulative, below[:, None], right=True)


def _weights(scores: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Convert scores in place to weights: 1 for the most likely token of a row, 0 for filtered ones."""
    temperature = _column(scores, [max(s.temperature, _COLDEST) for s in samplings])[:, None]
    weights = scores.sub_(scores.amax(-1, keepdim=True)).div_(temperature).exp_()
    if any(s.min_p > 0 for s in samplings):
        _keep(weights, _column(weights, [s.min_p for s in samplings]))
    limited = [row for row, s in enumerate(samplings) if 0 < s.top_k < weights.shape[1]]
    if limited:
        weights[limited] = _top_k(weights[limited], [samplings[row].top_k for row in limited])
    _top_p(weights, {row: s.top_p for row, s in enumerate(samplings) if s.top_p < 1.0})
    return weights


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _keep(weights: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    return weights.masked_fill_(weights < least[:, None], 0.0)


def _top_k(weights: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    ranked = weights.topk(max(counts)).values
    places = torch.tensor(counts, device=weights.device)[:, None] - 1
    return _keep(weights, ranked.gather(1, places)[:, 0])


def _top_p(weights: torch.Tensor, shares: Mapping[int, float]) -> None:
    """Keep in each row of `shares` the smallest set of most likely tokens that has at least that share of
    the weight."""
    for width in (*_NUCLEUS_GUESSES, weights.shape[1]):
        if shares:
            wider = _keep_nucleus(weights, shares, min(width, weights.shape[1]))
            shares = {row: share for row, share in shares.items() if row in wider}


def _keep_nucleus(weights: torch.Tensor, shares: Mapping[int, float], width: int) -> set[int]:
    rows = [*shares]
    lines = weights[rows]
    ranked = lines.topk(width).values
    cumulative = ranked.cumsum(-1, dtype=torch.float64)
    wanted = lines.sum(-1, dtype=torch.float64) * _column(cumulative, [*shares.values()])
    last = (cumulative < wanted[:, None]).sum(-1)  # the first index that reaches it, or `width`
    wider = (last == width) & (width < weights.shape[1])
    least = ranked.gather(1, last.clamp_(max=width - 1)[:, None])[:, 0]
    weights[rows] = _keep(lines, least.masked_fill_(wider, 0.0))
    return {row for row, is_wider in zip(rows, wider.tolist(), strict=True) if is_wider}


def rank_tokens(
    scores: torch.Tensor, chosen: Sequence[int], counts: Sequence[int], *, with_ranks: bool = False
) -> list[PositionLogprobs]:
    """Return the log-probabilities of the chosen token and of the `counts` most likely for each row of `scores`."""
    table = scores.log_softmax(-1)
    own = table.gather(1, torch.tensor(chosen, device=table.device)[:, None])
    best = table.topk(min(max(counts), table.shape[1]))
    ranks = (1 + (table > own).sum(-1)).tolist() if with_ranks else [0] * len(chosen)
    ranked = zip(own[:, 0].tolist(), best.indices.tolist(), best.values.tolist(), counts, ranks, strict=True)
    return [
        PositionLogprobs(logprob, tuple(zip(ids[:count], values[:count], strict=True)), rank)
        for logprob, ids, values, count, rank in ranked
    ]

"""Draw the next token of many sequences at once.

Order: minimum length, penalties, temperature, min_p, top_k, top_p, draw. Filters keep by value, never by place in a
sort, so ties cannot make the outcome depend on what else is in the batch. A draw's randomness is a pure function of
(seed, choice, output index): no generator, no history, so any worker at any time continues alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from scheduler.messages import Sampling, TokenLogprob

BROKEN_LOGITS = "the model's output for this request is not a number"
_COLDEST = 1e-6
"""Temperatures under it are as good as this one; in single precision the least of them would be 0."""
_LEAST_PENALTY = 0.01
"""The same of repetition penalties."""
_MASK64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NUCLEUS_GUESSES = (256, 4096)
"""So many of the likeliest tokens are sorted to find a nucleus, before the whole vocabulary is."""
_STRETCH = 256
"""Tokens of the vocabulary whose weights are summed before a draw looks at single ones."""


class TokenHistory:
    """What the penalties of one choice count: tokens of the prompt, and tokens generated so far."""

    def __init__(self, prompt: Sequence[int], generated: Sequence[int] = ()) -> None:
        self._prompt = prompt
        self.generated = Counter(generated)
        self.length = len(generated)

    @cached_property
    def prompt(self) -> frozenset[int]:
        """The prompt's tokens; few requests ever ask."""
        return frozenset(self._prompt)

    def append(self, token_id: int) -> None:
        """Count one more generated token."""
        self.generated[token_id] += 1
        self.length += 1


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw one row's token."""

    sampling: Sampling
    choice: int
    output_index: int
    history: TokenHistory


class Drawn(NamedTuple):
    """What came out, by row number."""

    tokens: Mapping[int, int]
    failed: Mapping[int, str]
    logprobs: Mapping[int, TokenLogprob]


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> Drawn:
    """One token for each row of `logits` [rows, vocabulary]. A row that holds NaN or +inf fails alone.

    Log-probabilities are the model's own, before penalties, temperature and filters.
    """
    scores = logits.float()
    highest = scores.max(-1)  # on float32: argmax of bfloat16 takes several times as long
    broken = (~highest.values.isfinite()).tolist()
    chosen: list[int] = highest.indices.tolist()
    sound = [row for row, is_broken in enumerate(broken) if not is_broken]
    shaped = [row for row in sound if _is_shaped(draws[row])]
    random = [row for row in sound if draws[row].sampling.temperature > 0]
    adjusted = _adjust(scores, shaped, draws) if shaped else scores
    for row, token in zip(shaped, adjusted[shaped].argmax(-1).tolist() if shaped else (), strict=True):
        chosen[row] = token
    if random:
        picked = _pick(adjusted[random], [draws[row] for row in random])
        for row, token in zip(random, picked, strict=True):
            chosen[row] = token
    return Drawn(
        tokens={row: chosen[row] for row in sound},
        failed={row: BROKEN_LOGITS for row, is_broken in enumerate(broken) if is_broken},
        logprobs=_logprobs(
            scores, {row: chosen[row] for row in sound if draws[row].sampling.logprobs is not None}, draws
        ),
    )


def uniform(seed: int, choice: int, output_index: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments: three rounds of splitmix64, 53 bits."""
    state = 0
    for word in (seed, choice, output_index):
        state = _splitmix64((state ^ word) & _MASK64)
    return float(state >> 11) / 2.0**53


def _splitmix64(word: int) -> int:
    """Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014)."""
    word = (word + _GOLDEN) & _MASK64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
    return word ^ (word >> 31)


def _is_shaped(draw: Draw) -> bool:
    s = draw.sampling
    penalised = s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0
    return penalised or _must_go_on(draw)


def _must_go_on(draw: Draw) -> bool:
    return draw.output_index < draw.sampling.min_tokens and bool(draw.sampling.stop_token_ids)


def _adjust(scores: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> torch.Tensor:
    """A copy of `scores` with the penalties and minimum lengths of `rows` in it."""
    adjusted = scores.clone()
    for row in rows:
        draw, line = draws[row], adjusted[row]
        _penalise(line, draw.sampling, draw.history)
        if _must_go_on(draw):
            line[torch.tensor(draw.sampling.stop_token_ids, device=line.device)] = float("-inf")
    return adjusted


def _penalise(line: torch.Tensor, sampling: Sampling, history: TokenHistory) -> None:
    """Repetition over prompt and output (Keskar et al., CTRL), presence and frequency over the output (OpenAI)."""
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor([*history.prompt | history.generated.keys()], dtype=torch.int64, device=line.device)
        found, penalty = line[seen], max(sampling.repetition_penalty, _LEAST_PENALTY)
        line[seen] = torch.where(found > 0, found / penalty, found * penalty)
    if history.generated and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens = torch.tensor([*history.generated], dtype=torch.int64, device=line.device)
        counts = torch.tensor([*history.generated.values()], dtype=torch.float32, device=line.device)
        line[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _pick(scores: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Inverse transform sampling from the filtered distribution, in the order of token ids. Consumes `scores`.

    Two levels, for speed: the stretch of the vocabulary that the draw falls into, then the token within it.
    """
    weights = _weights(scores, [draw.sampling for draw in draws])
    stretches = pad(weights, (0, -weights.shape[1] % _STRETCH)).view(len(draws), -1, _STRETCH)
    upto = stretches.sum(-1).cumsum(-1, dtype=torch.float64)
    wanted = upto[:, -1] * _column(upto, [uniform(d.sampling.seed, d.choice, d.output_index) for d in draws])
    stretch = _first_above(upto, wanted)
    wanted -= (upto - upto.diff(dim=-1, prepend=torch.zeros_like(upto[:, :1]))).gather(1, stretch)[:, 0]
    inside = stretches[torch.arange(len(draws), device=weights.device), stretch[:, 0]].cumsum(-1, dtype=torch.float64)
    found: list[int] = (stretch * _STRETCH + _first_above(inside, wanted))[:, 0].tolist()
    return found


def _first_above(cumulative: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Per row the first place where `cumulative` [rows, n] exceeds `wanted` [rows]: [rows, 1].

    `wanted` is held below the total, which rounding may bring it up to; so the place found always has weight.
    """
    total = cumulative[:, -1]
    below = torch.minimum(wanted, total.nextafter(torch.zeros_like(total))).clamp_(min=0)
    return torch.searchsorted(cumulative, below[:, None], right=True)


def _weights(scores: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Unnormalised probabilities [rows, vocabulary], the likeliest token's 1, what the filters drop 0. In place."""
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
    """`weights` [rows, vocabulary] with 0 where below the row's `least` [rows]. In place."""
    return weights.masked_fill_(weights < least[:, None], 0.0)


def _top_k(weights: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    ranked = weights.topk(max(counts)).values
    places = torch.tensor(counts, device=weights.device)[:, None] - 1
    return _keep(weights, ranked.gather(1, places)[:, 0])


def _top_p(weights: torch.Tensor, shares: Mapping[int, float]) -> None:
    """Keep in each row of `shares` the fewest likeliest tokens that weigh at least that share. In place."""
    for width in (*_NUCLEUS_GUESSES, weights.shape[1]):
        if shares:
            wider = _keep_nucleus(weights, shares, min(width, weights.shape[1]))
            shares = {row: share for row, share in shares.items() if row in wider}


def _keep_nucleus(weights: torch.Tensor, shares: Mapping[int, float], width: int) -> set[int]:
    """Do so where the nucleus is among the `width` likeliest tokens; returns the rows where it is not."""
    rows = [*shares]
    lines = weights[rows]
    ranked = lines.topk(width).values
    cumulative = ranked.cumsum(-1, dtype=torch.float64)
    wanted = lines.sum(-1, dtype=torch.float64) * _column(cumulative, [*shares.values()])
    last = (cumulative < wanted[:, None]).sum(-1)  # the first place that reaches it, or `width`
    wider = (last == width) & (width < weights.shape[1])
    least = ranked.gather(1, last.clamp_(max=width - 1)[:, None])[:, 0]
    weights[rows] = _keep(lines, least.masked_fill_(wider, 0.0))
    return {row for row, is_wider in zip(rows, wider.tolist(), strict=True) if is_wider}


def _logprobs(scores: torch.Tensor, chosen: Mapping[int, int], draws: Sequence[Draw]) -> dict[int, TokenLogprob]:
    if not chosen:
        return {}
    table = scores[list(chosen)].log_softmax(-1)
    own = table.gather(1, torch.tensor([*chosen.values()], device=table.device)[:, None])[:, 0].tolist()
    counts = [draws[row].sampling.logprobs or 0 for row in chosen]
    best = table.topk(min(max(counts), table.shape[1]))
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {
        row: TokenLogprob(logprob, tuple(zip(ids[:count], values[:count], strict=True)))
        for row, logprob, count, (ids, values) in zip(chosen, own, counts, ranked, strict=True)
    }

"""The requests of a run, with times, lanes and keys from a trace or from distributions, and their prompts."""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from fairlane.cli.client import CommandError
from fairlane.common.redacted import Redacted
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.trace import HASHED_TOKENS, TraceRow

MOST_KEYS = 10_000
MOST_REQUESTS = 1_000_000
# Common words, each of which is one token in most vocabularies.
WORDS = tuple(
    """
    the river carried small boats past old stone houses while people talked about weather music bread science and long
    journeys over high mountains under bright stars near quiet fields where children played every summer evening before
    dark winter came with cold wind heavy snow warm fires good books strong tea simple food new songs great plans clear
    water green leaves open doors wide streets early trains late letters slow clocks round tables
    """.split()  # noqa: SIM905 - a hundred quoted words are harder to read
)


class TenantKey(Redacted, frozen=True):
    """A key to send requests with."""

    # Shown in results instead of the key.
    name: str
    key: str
    # Share of the requests relative to other keys.
    weight: float = 1.0


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to send."""

    number: int
    # Since the start of the run, in an open loop.
    at_s: float
    lane: LaneName
    key: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = HASHED_TOKENS


class TokenRange(msgspec.Struct, frozen=True):
    """A uniform distribution of token counts, both bounds included."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str, name: str) -> "TokenRange":
        first, _, last = text.partition(":")
        bounds = [
            int(each) if each.isascii() and each.isdecimal() and len(each) < 9 else 0 for each in (first, last or first)
        ]
        if not 1 <= bounds[0] <= bounds[1]:
            raise CommandError(f"{name}: write a number of tokens or LEAST:MOST, not {text[:40]!r}")
        return cls(*bounds)

    def draw(self, draws: random.Random) -> int:
        return draws.randint(self.least, self.most)


class Mix:
    """Draws keys and lanes from a seed."""

    def __init__(self, keys: Sequence[TenantKey], latency_share: float, draws: random.Random) -> None:
        self._upto = list(accumulate(key.weight for key in keys))
        self._latency_share = latency_share
        self._draws = draws
        self._of_tenants: dict[str, int] = {}

    def lane(self) -> LaneName:
        return LaneName.LATENCY if self._draws.random() < self._latency_share else LaneName.THROUGHPUT

    def key(self) -> int:
        draw = self._draws.random() * self._upto[-1]
        return min(bisect_right(self._upto, draw), len(self._upto) - 1)

    def key_of(self, tenant: str) -> int:
        """Return the key of a trace's tenant: tenants get the keys in turn, in order of appearance."""
        return self._of_tenants.setdefault(tenant, len(self._of_tenants) % len(self._upto))


def drawn(
    mix: Mix, prompts: TokenRange, outputs: TokenRange, rate: float | None, draws: random.Random
) -> Iterator[BenchRequest]:
    """Yield requests without end; with a rate, as a Poisson process."""
    at_s, number = 0.0, 0
    while True:
        if rate is not None:
            at_s += draws.expovariate(rate)
        yield BenchRequest(
            number=number,
            at_s=at_s,
            lane=mix.lane(),
            key=mix.key(),
            prompt_tokens=prompts.draw(draws),
            output_tokens=outputs.draw(draws),
        )
        number += 1


def replayed(rows: Sequence[TraceRow], mix: Mix, speed: float) -> Iterator[BenchRequest]:
    """Yield the requests of a trace, `speed` times as fast; draw lanes and keys that it does not name."""
    began_ms = rows[0].at_ms
    for number, row in enumerate(rows):
        yield BenchRequest(
            number=number,
            at_s=(row.at_ms - began_ms) / 1e3 / speed,
            lane=row.lane or mix.lane(),
            key=mix.key() if row.tenant is None else mix.key_of(row.tenant),
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            hash_ids=row.hash_ids,
            block_tokens=row.block_tokens,
        )


def read_keys(listed: Sequence[str], file: Path | None, zipf: float) -> list[TenantKey]:
    """Read the keys; key k without its own weight has the weight 1 / k ** `zipf`. Raises CommandError."""
    lines = [[each] for each in listed]
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{file}: cannot be read ({type(error).__name__})") from None
        lines += [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not 1 <= len(lines) <= MOST_KEYS:
        raise CommandError(f"name 1 to {MOST_KEYS} keys: --key, --keys FILE, or OPENAI_API_KEY")
    return [_key(words, place, zipf) for place, words in enumerate(lines, 1)]


def _key(words: Sequence[str], place: int, zipf: float) -> TenantKey:
    key = words[0] if len(words) == 1 else words[1]
    if len(words) > 3 or not (key and key.isascii() and key.isprintable() and " " not in key):
        raise CommandError(f"key {place}: expected KEY or NAME KEY [WEIGHT]")
    weight = float(place) ** -zipf
    if len(words) == 3:
        try:
            weight = float(words[2])
        except ValueError:
            weight = 0.0
    if not 0.0 < weight < 1e9:
        raise CommandError(f"key {place}: the weight must be a number above 0")
    return TenantKey(public_name(key, place) if len(words) == 1 else words[0], key, weight)


def public_name(key: str, place: int) -> str:
    """Return a name that is safe to show: a key's public id, or its place if it is not Fairlane's."""
    parts = key.split("-")
    return f"fl-{parts[1]}" if len(parts) >= 3 and parts[0] == "fl" else f"key {place}"


class PromptMaker:
    """Makes prompts as token ids if the model's ids of common words are known, else as text of about that many tokens.

    The same seed makes the same prompts, which a second run would find in the prefix cache. Blocks that a trace names
    are derived from their names, so two prompts share exactly the prefix that their names share."""

    def __init__(self, seed: str, vocabulary: Sequence[int] = ()) -> None:
        """`vocabulary`: token ids to draw from; empty makes prompts of text."""
        self._seed = seed
        self._vocabulary = vocabulary

    def prompt(self, request: BenchRequest) -> list[int] | str:
        drawn: list[int] = []
        size = request.block_tokens
        for block in request.hash_ids[: request.prompt_tokens // size]:
            drawn += self._places(f"{self._seed}/block/{block}", size)
        rest = request.prompt_tokens - len(drawn)
        drawn += self._places(f"{self._seed}/own/{request.number}", rest)
        if self._vocabulary:
            return [self._vocabulary[place] for place in drawn]
        return " ".join([WORDS[place] for place in drawn])

    def _places(self, seed: str, count: int) -> list[int]:
        draws = random.Random(seed)
        return draws.choices(range(len(self._vocabulary) or len(WORDS)), k=count)

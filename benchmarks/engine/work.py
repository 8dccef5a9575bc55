"""The work: W1 and W2 as fixed token files, and what is made of them. Standard library alone.

python -m benchmarks.engine.work writes both files anew, from the seed below, byte for byte the same.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.turns import Request

SEED = 2026
TOKENS = range(1_000, 49_000)
"""What prompts are drawn from: ordinary tokens of SmolLM2's 49,152, none of its special ones."""
W2_PROMPT, W2_CAP = 128, 512
ALONE_PROMPT = 512
_HERE = Path(__file__).parent


def draw_w1(chooser: random.Random) -> list[Request]:
    """128 requests: prompts log-normal, median 100, 99th percentile 800; outputs exponential, mean 96, at most 512."""
    lengths = [max(1, round(chooser.lognormvariate(4.605, 0.894))) for _ in range(128)]
    return [(_prompt(chooser, length), _output(chooser, 96, 512)) for length in lengths]


def draw_w2(chooser: random.Random) -> list[Request]:
    """64 requests: equal prompts; outputs exponential, mean 128, drawn again where longer than 512, as Anyscale did."""
    return [(_prompt(chooser, W2_PROMPT), _again(chooser, 128, W2_CAP)) for _ in range(64)]


def equal(count: int, prompt: int, output: int, seed: int = SEED) -> list[Request]:
    """So many requests of one size."""
    chooser = random.Random(seed)
    return [(_prompt(chooser, prompt), output) for _ in range(count)]


def load(name: str) -> list[Request]:
    """The requests of `w1` or `w2`."""
    document = json.loads((_HERE / f"{name}.json").read_text())
    return [(prompt, tokens) for prompt, tokens in document]


def demand_tokens(requests: Sequence[Request], block_size: int = 16) -> int:
    """KV tokens, in whole blocks, that all of them hold at their ends."""
    return sum(-(-(len(prompt) + tokens) // block_size) * block_size for prompt, tokens in requests)


def _prompt(chooser: random.Random, length: int) -> list[int]:
    return [chooser.choice(TOKENS) for _ in range(length)]


def _output(chooser: random.Random, mean: int, cap: int) -> int:
    return min(cap, max(1, round(chooser.expovariate(1 / mean))))


def _again(chooser: random.Random, mean: int, cap: int) -> int:
    while True:
        found = max(1, round(chooser.expovariate(1 / mean)))
        if found <= cap:
            return found


def main() -> None:
    """Write both files."""
    for name, draw in (("w1", draw_w1), ("w2", draw_w2)):
        lines = ",\n".join(json.dumps(request, separators=(",", ":")) for request in draw(random.Random(SEED)))
        (_HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

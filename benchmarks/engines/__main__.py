"""`python -m benchmarks.engines --vllm PYTHON --model DIRECTORY`: what a flood of the throughput lane does to requests
of the latency lane, and they to the flood: on vLLM as it is, with our lanes inside, and behind Fairlane."""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.engines.arms import ARMS, served
from benchmarks.engines.load import FLOOD, Found, Load


def quantile(values: list[float], part: float) -> float:
    """The nearest-rank quantile."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    # Absolute, since vLLM starts in a directory of its own; not resolved: the link is what makes an environment.
    parser.add_argument(
        "--vllm",
        required=True,
        type=lambda path: str(Path(path).absolute()),
        help="the Python of an environment that has vLLM",
    )
    parser.add_argument("--model", required=True, type=Path, help="a model directory")
    parser.add_argument("--arms", nargs="*", type=int, default=[*range(len(ARMS))], help="which of them, from 0")
    parser.add_argument("--requests", type=int, default=60, help="of the latency lane, in each arm")
    parser.add_argument("--every", type=float, default=4.0, help="seconds from one to the next")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds of flood before the first of them")
    parser.add_argument("--json", type=Path, help="where to keep every figure")
    parser.add_argument("more", nargs="*", help="further arguments of vLLM, behind --")
    asked = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="engines-"))
    found: dict[str, Found] = {}
    for number in asked.arms:
        arm = ARMS[number]
        log = logs / f"arm{number}.log"
        with served(arm, asked.vllm, asked.model.resolve(), log, more=tuple(asked.more)) as door:
            found[arm.name] = asyncio.run(Load(door, seed=7).run(asked.warm, asked.requests, asked.every))
        print(arm.name, f"median {quantile(found[arm.name].ttft_s, 0.5):.3f} s", f"log {log}", flush=True)
    columns = ("TTFT median s", "TTFT P99 s", "TPOT median ms", "flood tokens/s")
    shown = Table("served by", *columns, title=f"a request each {asked.every:g} s beside {FLOOD} streams")
    for name, one in found.items():
        first, last = quantile(one.ttft_s, 0.5), quantile(one.ttft_s, 0.99)
        pace_ms = quantile(one.tpot_s, 0.5) * 1e3
        shown.add_row(name, f"{first:.3f}", f"{last:.3f}", f"{pace_ms:.0f}", f"{one.flood_rate:.1f}")
    open_console().print(describe(("fairlane",)), shown)
    if asked.json is not None:
        asked.json.write_text(json.dumps({name: vars(one) for name, one in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()

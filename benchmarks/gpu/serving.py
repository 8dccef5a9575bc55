"""A latency lane beside a flood, through gateway, queue and worker on one GPU, with random weights.

python -m benchmarks.gpu.serving [--shape 1B] [--seconds 20] [--json FILE]

`fairlane serve` runs as users run it, `fairlane bench` loads it: first with requests of the latency lane alone, then
with 64 streams of the throughput lane, then with both.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from benchmarks.common.line import Line, at_least, at_most
from benchmarks.common.report import conclude, open_console, summary
from benchmarks.common.served import ServedFairlane
from benchmarks.gpu.stand import SHAPES

LINE = 7
STREAMS = 64
RATE_PER_S = 4.0
PROMPT_TOKENS, OUTPUT_TOKENS, FLOOD_PROMPT_TOKENS = 256, 32, 512
SHAPES_HERE = SHAPES | {
    "tiny": SHAPES["1B"] | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 512}
}
"""`tiny`: to try the script without a GPU."""


def write_model(directory: Path, shape: str) -> Path:
    """Write random weights of a shape in bfloat16, with a word for each token."""
    config = LlamaConfig(**SHAPES_HERE[shape], eos_token_id=2, dtype="bfloat16")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    tokens = {"eos_token": "w2", "unk_token": "w0"}
    words = Tokenizer(
        WordLevel({f"w{token}": token for token in range(config.vocab_size)}, unk_token=tokens["unk_token"])
    )
    PreTrainedTokenizerFast(tokenizer_object=words, **tokens).save_pretrained(directory)
    return directory


def bench(served: ServedFairlane, key: str, file: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Load the gateway in a process of its own."""
    command = [sys.executable, "-c", "from fairlane.cli.main import main; main()", "bench", "run", "--url", served.url]
    return subprocess.Popen([*command, "--key", key, "--json", str(file), *options], stdout=subprocess.DEVNULL)


def latency_load(seconds: float) -> list[str]:
    sizes = ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
    return ["--rate", str(RATE_PER_S), "--latency-share", "1", "--duration", str(seconds), *sizes]


def flood_load(seconds: float) -> list[str]:
    sizes = ["--prompt-tokens", str(FLOOD_PROMPT_TOKENS), "--output-tokens", "256:512"]
    return ["--concurrency", str(STREAMS), "--latency-share", "0", "--duration", str(seconds), *sizes]


def run(served: ServedFairlane, key: str, directory: Path, loads: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Run loads at the same time, and return their figures."""
    files = [directory / f"load{number}.json" for number in range(len(loads))]
    processes = [bench(served, key, file, *load) for file, load in zip(files, loads, strict=True)]
    for process in processes:
        process.wait()
    return [json.loads(file.read_text()) for file in files]


def measure_lines(served: ServedFairlane, directory: Path, seconds: float) -> Iterator[Line]:
    """The lane alone, the flood alone, both: the lane's first tokens, and what the flood loses."""
    key = served.tenant("bench")
    run(served, key, directory, [latency_load(3.0), flood_load(3.0)])  # graphs, kernels and costs
    [lane] = run(served, key, directory, [latency_load(seconds / 2)])
    [flood] = run(served, key, directory, [flood_load(seconds)])
    beside, flooded = run(served, key, directory, [latency_load(seconds), flood_load(seconds)])
    how = f"{RATE_PER_S:g} requests/s of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens beside {STREAMS} streams; alone: "
    alone_ms = lane["total"]["ttft_ms"]
    for percentile, target_ms in (("p50", 150.0), ("p99", 400.0)):
        value = beside["total"]["ttft_ms"][percentile]
        name = f"latency lane beside a flood: time to first token, {percentile.upper()}, ms"
        yield at_most(LINE, name, value, target_ms, f"{how}{alone_ms[percentile]:.0f} ms")
    rate, rate_beside = (found["total"]["output_tokens_per_s"] for found in (flood, flooded))
    lane_rate = beside["total"]["output_tokens_per_s"]
    how = f"{rate:,.0f} tokens/s alone, {rate_beside:,.0f} beside the lane's {lane_rate:,.0f}"
    yield at_least(LINE, "the flood's output beside the lane, share of its own alone", rate_beside / rate, 0.8, how)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the process' exit status: 1 where a line is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.serving", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=sorted(SHAPES_HERE), default="1B")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines to this file")
    options = parser.parse_args(arguments)
    console = open_console()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        settings = {"MODEL": str(write_model(directory / "model", options.shape))}
        if torch.cuda.is_available():
            settings |= {"WORKER__KV_MEMORY": "16GiB", "WORKER__HOST_KV_MEMORY": "8GiB"}
        (directory / "data").mkdir()
        with ServedFairlane(directory / "data", settings) as served:
            lines = list(measure_lines(served, directory, options.seconds))
    console.print(summary(lines))
    return conclude(lines, options.json)


if __name__ == "__main__":
    sys.exit(main())

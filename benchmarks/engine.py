"""Output tokens per second: our engine beside transformers' static `generate` and its continuous batching.

python -m benchmarks.engine [--requests 32] [--rounds 3] [--json FILE]

One run, the same weights, dtype, threads and requests for all; the contenders take turns, each round begins with
another one, and medians are printed as a Markdown table. Every request has its own prompt and output length, known
to all contenders and never cut short. Static batches are padded and run until their longest request is done; only
the tokens that were asked for count. Continuous batching is what `generate_batch` runs inside, through its manager,
since only that takes a length per request.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import cpu_name
from benchmarks.work import greedy_lease
from scheduler.lanes import DEFAULT_LANES
from scheduler.settings import DEFAULT_MODEL
from worker.engine import Engine, build_engine
from worker.model import choose_device, choose_dtype
from worker.model_files import ModelFiles, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WARM_UP = [([1, 2, 3], 4), ([4, 5], 3)]
RESULT_TIMEOUT_S = 600.0

Request = tuple[list[int], int]
"""Prompt token ids, and output tokens wanted."""
Contender = Callable[[Sequence[Request]], int]
"""Runs all requests to their end; returns the output tokens that were asked for and made."""


class BenchmarkError(RuntimeError):
    """A contender did not do all the work."""


@dataclass
class Series:
    """One contender's measured rounds."""

    name: str
    tokens_per_s: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Output tokens per second."""
        return statistics.median(self.tokens_per_s)


def make_requests(count: int, prompt_median: int, output_mean: int, longest: int, vocab_size: int) -> list[Request]:
    """Log-normal prompt lengths and exponential output lengths, both cut at `longest`; random tokens, fixed seed."""
    chooser = random.Random(0)
    found = []
    for _ in range(count):
        prompt_tokens = min(longest, max(1, round(prompt_median * chooser.lognormvariate(0.0, 0.8))))
        output_tokens = min(longest, max(1, round(chooser.expovariate(1 / output_mean))))
        found.append(([chooser.randrange(vocab_size) for _ in range(prompt_tokens)], output_tokens))
    return found


def ours(engine: Engine) -> Contender:
    """Our engine, everything handed to it at once."""

    def run(requests: Sequence[Request]) -> int:
        for number, (prompt, tokens) in enumerate(requests):
            engine.add(greedy_lease(number, prompt, tokens), time.monotonic() * 1e3)
        made = 0
        while engine.has_work:
            made += len(engine.step(time.monotonic() * 1e3).outcome.produced)
        return made

    return run


def static(model: "PreTrainedModel", batch: int) -> Contender:
    """`generate` on padded batches in the order of arrival."""

    def run(requests: Sequence[Request]) -> int:
        for start in range(0, len(requests), batch):
            part = requests[start : start + batch]
            widest = max(len(prompt) for prompt, _ in part)
            ids = torch.tensor([[0] * (widest - len(prompt)) + prompt for prompt, _ in part])
            mask = torch.tensor([[0] * (widest - len(prompt)) + [1] * len(prompt) for prompt, _ in part])
            model.generate(
                ids.to(model.device),
                attention_mask=mask.to(model.device),
                do_sample=False,
                max_new_tokens=max(tokens for _, tokens in part),
                pad_token_id=0,
            )
        return sum(tokens for _, tokens in requests)

    return run


def continuous(model: "PreTrainedModel") -> Contender:
    """Transformers' continuous batching with its defaults."""
    config = transformers.GenerationConfig(do_sample=False, max_new_tokens=1, eos_token_id=-1, pad_token_id=0)

    def run(requests: Sequence[Request]) -> int:
        made = 0
        with model.continuous_batching_context_manager(generation_config=config, timeout=5.0) as manager:
            for prompt, tokens in requests:
                manager.add_request(prompt, max_new_tokens=tokens)
            for _ in requests:
                output = manager.get_result(timeout=RESULT_TIMEOUT_S)
                if output is None or output.error:
                    raise BenchmarkError(f"continuous batching failed: {output and output.error}")
                made += len(output.generated_tokens)
        return made

    return run


def measure(
    contenders: dict[str, Contender], requests: Sequence[Request], rounds: int, advance: Callable[[str], None]
) -> list[Series]:
    """Warm everyone up, then let them take turns; another one begins each round. Raises BenchmarkError."""
    series = {name: Series(name) for name in contenders}
    wanted = sum(tokens for _, tokens in requests)
    for name, run in contenders.items():
        run(WARM_UP)
        advance(name)
    for number in range(rounds):
        order = [*contenders][number % len(contenders) :] + [*contenders][: number % len(contenders)]
        for name in order:
            began = time.perf_counter()
            made = contenders[name](requests)
            if made != wanted:
                raise BenchmarkError(f"{name} made {made} tokens of {wanted}")
            series[name].tokens_per_s.append(made / (time.perf_counter() - began))
            advance(name)
    return [*series.values()]


def describe_machine(dtype: torch.dtype, device: torch.device) -> dict[str, str]:
    """What the figures were measured on."""
    processor = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "processor": processor,
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "unset"),
        "dtype": str(dtype).removeprefix("torch."),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def markdown(series: Sequence[Series], machine: dict[str, str], work: str) -> str:
    """The table for the README, with what it was measured on."""
    base = series[0].median
    rows = [
        f"| {one.name} | {one.median:.0f} | {min(one.tokens_per_s):.0f} to {max(one.tokens_per_s):.0f} "
        f"| {base / one.median:.2f}x |"
        for one in series
    ]
    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = ["| engine | output tokens/s, median | spread | ours is |", "| --- | ---: | ---: | ---: |"]
    return "\n".join([work, "", *head, *rows, "", f"Measured on: {where}."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the process' exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-median", type=int, default=100, help="tokens")
    parser.add_argument("--output-mean", type=int, default=64, help="tokens")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a prompt or an output at most")
    parser.add_argument("--static-batch", type=int, default=32)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--without", action="append", default=[], choices=("static", "continuous"))
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--models-dir", type=Path, default=Path(".fairlane/models"))
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    return _run(options)


def _contenders(files: ModelFiles, options: argparse.Namespace, device: torch.device) -> dict[str, Contender]:
    engine = build_engine(files, lanes=DEFAULT_LANES, dtype=options.dtype, device=str(device))
    found = {"Fairlane": ours(engine)}
    names = {
        "static": f"transformers generate, batches of {options.static_batch}",
        "continuous": "transformers continuous batching",
    }
    if set(options.without) != set(names):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            files.directory, dtype=choose_dtype(options.dtype, device), attn_implementation="sdpa"
        )
        model = model.to(device).eval().requires_grad_(False)
        model.generation_config.eos_token_id = None
        runs = {"static": static(model, options.static_batch), "continuous": continuous(model)}
        found |= {names[kind]: run for kind, run in runs.items() if kind not in options.without}
    return found


def _run(options: argparse.Namespace) -> int:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = choose_device(options.device)
    files = resolve(options.model, options.models_dir)
    contenders = _contenders(files, options, device)
    vocab_size = transformers.AutoConfig.from_pretrained(files.directory).vocab_size
    requests = make_requests(options.requests, options.prompt_median, options.output_mean, options.longest, vocab_size)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("warming up", total=len(contenders) * (options.rounds + 1))
        series = measure(
            contenders, requests, options.rounds, lambda name: progress.update(task, advance=1, description=name)
        )
    machine = describe_machine(choose_dtype(options.dtype, device), device)
    prompt_tokens, output_tokens = sum(len(prompt) for prompt, _ in requests), sum(tokens for _, tokens in requests)
    work = (
        f"{files.name}, {len(requests)} requests at once, {prompt_tokens} prompt tokens, {output_tokens} output "
        f"tokens, greedy; {options.rounds} rounds, interleaved."
    )
    sys.stdout.write(markdown(series, machine, work) + "\n")
    if options.json:
        document = {"work": work, "machine": machine, "series": [asdict(one) for one in series]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

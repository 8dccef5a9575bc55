"""Our engine on one GPU beside what the GPU can do: decode, prefill, swaps, preemptions, and transformers' engine.

python -m benchmarks.gpu [--quick] [--json FILE]

Random weights at the shapes of Llama 3.1 8B and Llama 3.2 1B: no network, and no figure depends on their values.
Ceilings are measured in the same call: the memory's bandwidth, the rate of a large matrix product, and copies to and
from page-locked memory. `--quick` leaves out transformers' continuous batching, which takes minutes.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
import transformers
from rich.console import Console
from rich.table import Table

from benchmarks.common import machine
from benchmarks.common.leases import greedy_lease
from benchmarks.common.line import Line, at_least, at_most, unmeasured
from benchmarks.common.report import conclude, open_console
from benchmarks.engine.ours import admission, serve
from benchmarks.engine.plain import continuous
from benchmarks.gpu.stand import BLOCK_SIZE, Ceilings, Stand, device_s, make_stand, measure_ceilings, wall_s
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import Copy, Row, SeqId, StepPlan
from fairlane.worker.attention.backends import BACKENDS, REFERENCE, disagreement, in_short
from fairlane.worker.attention.triton import TritonPaged
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.kv.cache import KVShape
from fairlane.worker.kv.transfer import transfer_for
from fairlane.worker.model.packing import pack

LINE = 7
ROWS, CONTEXT = 64, 1024
STEPS = 33
PREFILL_ROWS, PREFILL_TOKENS = 4, 2048
SWAPPED = CONTEXT // BLOCK_SIZE
"""Blocks of one preempted row."""
MANY = 1024
"""Blocks of a swap that is long enough for its rate to count."""
OUTPUT_TOKENS = 128
CB_ROUNDS = 3


class Decode:
    """Rows that decode step after step, their contexts around `CONTEXT`."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._number = 0
        self._tables = tables(ROWS, -(-(CONTEXT + STEPS * 4) // BLOCK_SIZE))
        for row in range(ROWS):
            stand.runner.register(greedy_lease(row, [1] * CONTEXT, STEPS * 8))

    def rows(self, number: int) -> tuple[Row, ...]:
        """Of a step."""
        at = CONTEXT - STEPS + number
        held = -(-(at + 1) // BLOCK_SIZE)
        return tuple(
            Row(SeqId(str(row), 0), (1 + row,), at, tuple(table[:held]), samples=True, output_index=number)
            for row, table in enumerate(self._tables)
        )

    def step_ms(self, swap_out: Sequence[Copy] = ()) -> float:
        """Run a step, until its tokens are on the host; meanwhile the next one is made ready, as by an engine."""
        number = self._number
        plan = StepPlan(number, self.rows(number), tuple(swap_out))
        result = self._stand.runner.run(plan, look_ahead=lambda: self.rows(number + 1))
        self._number += 1
        return result.run_ms + result.copy_ms

    def close(self) -> None:
        """Let the runner forget the rows."""
        for row in range(ROWS):
            self._stand.runner.forget(str(row))


def tables(rows: int, width: int, first: int = 0) -> list[list[int]]:
    """Blocks of each row, strewn over the pool as after hours of service."""
    blocks = random.Random(0).sample(range(first, first + rows * width), rows * width)
    return [blocks[row * width : (row + 1) * width] for row in range(rows)]


def roofline_share(stand: Stand, ceilings: Ceilings) -> tuple[float, float]:
    """Of decode steps: the share of the time that reading the bytes takes at best, and the median step in ms."""
    decode = Decode(stand)
    taken_ms = median([decode.step_ms() for _ in range(2 * STEPS)][STEPS // 2 :])
    decode.close()
    read = stand.read_bytes + ROWS * CONTEXT * stand.token_bytes
    return read / ceilings.bytes_per_s * 1e3 / taken_ms, taken_ms


@torch.inference_mode()
def prefill_share(stand: Stand, ceilings: Ceilings) -> float:
    """Of prompts computed whole: their floating point operations' rate, as a share of a large product's."""
    width = PREFILL_TOKENS // BLOCK_SIZE
    rows = [
        Row(SeqId(str(number), 0), (1,) * PREFILL_TOKENS, 0, tuple(table), samples=True, output_index=0)
        for number, table in enumerate(tables(PREFILL_ROWS, width))
    ]
    packed = pack(rows, stand.cache, stand.fused.backend)
    taken_s = device_s(lambda: stand.fused.forward(packed, stand.cache))
    config = stand.causal_lm.config
    pairs = PREFILL_TOKENS * (PREFILL_TOKENS + 1) // 2
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs
    operations = PREFILL_ROWS * (2 * stand.linear_parameters * PREFILL_TOKENS + attention)
    return float(operations / taken_s / ceilings.flops_per_s)


def swap_shares(stand: Stand, ceilings: Ceilings) -> tuple[float, float]:
    """Out and in: the rate of many blocks as a share of one large copy's."""
    transfer = transfer_for(stand.cache)
    blocks = [block for row in tables(MANY // SWAPPED, SWAPPED) for block in row]
    out = [Copy(block, slot) for slot, block in enumerate(blocks)]
    back = [Copy(slot, block) for slot, block in enumerate(blocks)]
    size = MANY * BLOCK_SIZE * stand.token_bytes
    out_rate = size / wall_s(lambda: transfer.start(out, []))
    in_rate = size / wall_s(lambda: transfer.start([], back))
    return out_rate / ceilings.out_bytes_per_s, in_rate / ceilings.in_bytes_per_s


def stall_share(stand: Stand) -> float:
    """How much longer steps take in which a row's blocks leave, and the steps right after: shares of a step, added."""
    decode = Decode(stand)
    leaving = [Copy(stand.cache.blocks - 1 - block, block) for block in range(SWAPPED)]
    for _ in range(STEPS):
        decode.step_ms()
    plain, disturbed, after = [], [], []
    for _ in range(STEPS // 3):
        disturbed.append(decode.step_ms(leaving))
        after.append(decode.step_ms())
        plain.append(decode.step_ms())
    decode.close()
    return (median(disturbed) + median(after)) / median(plain) - 2.0


def against_continuous(stand: Stand) -> float:
    """Output tokens per second of our engine over those of transformers' continuous batching, the median of rounds."""
    step_tokens = PREFILL_ROWS * PREFILL_TOKENS
    planner = planner_for(stand.cache, CostModel(), max_sequences=ROWS, max_step_tokens=step_tokens)
    chooser = random.Random(0)
    vocabulary = stand.causal_lm.config.vocab_size
    requests = [([chooser.randrange(vocabulary) for _ in range(CONTEXT)], OUTPUT_TOKENS) for _ in range(ROWS)]
    stand.causal_lm.generation_config.eos_token_id = None
    engine, theirs = Engine(planner, stand.runner), continuous(stand.causal_lm)
    ratios: list[float] = []
    for _ in range(CB_ROUNDS):
        mine_s = serve(engine, requests, admission("paged", ROWS)).seconds
        ratios.append(theirs(requests)["seconds"] / mine_s)
    return median(ratios)


def exactness(stand: Stand) -> list[Line]:
    """The Triton kernels beside the reference, over poisoned neighbours."""
    name = "Triton kernels agree with the reference, {} (1: yes)"
    lines = []
    for dtype in (torch.float32, torch.bfloat16):
        shape = KVShape(2, stand.cache.shape.kv_heads, stand.cache.shape.head_dim, dtype)
        reason = disagreement(TritonPaged(), BACKENDS[REFERENCE], shape, stand.cache.device)
        how = "worker/attention/backends.py: " + (reason or "float32 to 1e-4, bfloat16 to 0.02 of the largest output")
        label = name.format(str(dtype).removeprefix("torch."))
        lines.append(at_least(LINE, label, float(reason is None), 1.0, how))
    return lines


def measure_lines(ceilings: Ceilings, *, quick: bool) -> Iterator[Line]:
    """All of the lines, one after another."""
    how = f"median of whole steps, {ROWS} rows of {CONTEXT} tokens, bfloat16, {ceilings.bytes_per_s / 1e12:.2f} TB/s"
    small = make_stand("1B", rows=ROWS, blocks=8192, host_slots=0)
    share, step_ms = roofline_share(small, ceilings)
    yield at_least(
        LINE, "decode, 1B shape: share of the bytes roofline", share, 0.65, f"{how}; {step_ms:.2f} ms a step"
    )
    del small
    stand = make_stand("8B", rows=ROWS, blocks=8192, host_slots=2 * MANY)
    yield from exactness(stand)
    share, step_ms = roofline_share(stand, ceilings)
    yield at_least(
        LINE,
        "decode, 8B shape: share of the bytes roofline",
        share,
        0.85,
        f"{how}; {step_ms:.2f} ms a step on {stand.fused.backend} attention",
    )
    how = f"{PREFILL_ROWS} prompts of {PREFILL_TOKENS} tokens; the product: {ceilings.flops_per_s / 1e12:.0f} TFLOP/s"
    yield at_least(LINE, "prefill, 8B shape: share of the rate of a product", prefill_share(stand, ceilings), 0.6, how)
    out, back = swap_shares(stand, ceilings)
    how = f"{MANY} blocks strewn over the pool; the copy's rate {{:.1f}} GB/s"
    yield at_least(LINE, "swap out: share of a copy's rate", out, 0.8, how.format(ceilings.out_bytes_per_s / 1e9))
    yield at_least(LINE, "swap in: share of a copy's rate", back, 0.8, how.format(ceilings.in_bytes_per_s / 1e9))
    how = f"{SWAPPED} blocks leave; that step and the next beside plain ones, medians"
    yield at_most(LINE, "stall of the other rows by a preemption, share of a step", stall_share(stand), 0.05, how)
    yield continuous_line(stand, quick=quick)


def continuous_line(stand: Stand, *, quick: bool) -> Line:
    """Beside transformers' engine, where that runs here."""
    name = "tokens per second over transformers' continuous batching"
    how = f"{ROWS} requests of {CONTEXT} tokens for {OUTPUT_TOKENS} more, whole runs, medians of {CB_ROUNDS} in turns"
    if quick:
        return unmeasured(LINE, name, 2.0, "--quick")
    try:
        return at_least(LINE, name, against_continuous(stand), 2.0, how)
    except Exception as error:  # noqa: BLE001 - whatever ails it there, our own lines are measured by now
        return unmeasured(LINE, name, 2.0, f"it failed: {in_short(error)}")


def show(line: Line, console: Console) -> None:
    """One line as soon as it is known."""
    verdict = {True: "met", False: "NOT MET", None: "unmeasured"}[line.met]
    value = "-" if line.value is None else f"{line.value:.3g}"
    console.print(f"{line.name}: {value} (target {line.target:g}, {verdict}); {line.how}", soft_wrap=True)


def show_ceilings(ceilings: Ceilings, console: Console) -> None:
    """What everything is compared with."""
    table = Table("ceiling", "measured", title="The device at its best")
    table.add_row("memory", f"{ceilings.bytes_per_s / 1e12:.2f} TB/s")
    table.add_row("bfloat16 product", f"{ceilings.flops_per_s / 1e12:.0f} TFLOP/s")
    table.add_row("to the host", f"{ceilings.out_bytes_per_s / 1e9:.1f} GB/s")
    table.add_row("from the host", f"{ceilings.in_bytes_per_s / 1e9:.1f} GB/s")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the process' exit status: 1 where a line is not met, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without transformers' continuous batching")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines to this file")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write("benchmarks.gpu: there is no CUDA device here\n")
        return 2
    transformers.utils.logging.set_verbosity_error()
    console = open_console()
    console.print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {machine.describe()}", soft_wrap=True)
    ceilings = measure_ceilings()
    show_ceilings(ceilings, console)
    lines = []
    for line in measure_lines(ceilings, quick=options.quick):
        show(line, console)
        lines.append(line)
    return conclude(lines, options.json)


if __name__ == "__main__":
    sys.exit(main())

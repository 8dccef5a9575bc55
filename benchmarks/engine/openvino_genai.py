"""OpenVINO GenAI's continuous batching, run by the Python of an environment that has it: see benchmarks/peers.md."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.turns import THREADS, Answer, Order, Request, answer_turns, timed


def build(options: Mapping[str, Any]) -> Callable[[Order], Answer]:
    """One pipeline in its defaults (8-bit KV among them), on weights exported as 16-bit floats."""
    os.environ.pop("OMP_WAIT_POLICY", None)
    import numpy
    import openvino  # type: ignore[import-not-found]
    import openvino_genai  # type: ignore[import-not-found]

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = 3  # GiB
    scheduling.max_num_seqs = options["max_sequences"]
    scheduling.max_num_batched_tokens = 1024
    scheduling.enable_prefix_caching = False  # rounds repeat the same prompts
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(exported(Path(options["directory"]))), scheduling, "CPU", {"INFERENCE_NUM_THREADS": THREADS}
    )

    def config(tokens: int) -> object:
        found = openvino_genai.GenerationConfig()
        found.max_new_tokens = found.min_new_tokens = tokens
        found.ignore_eos, found.do_sample = True, False
        return found

    def run(requests: Sequence[Request]) -> int:
        prompts = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt, _ in requests]
        results = pipeline.generate(prompts, [config(tokens) for _, tokens in requests])
        return sum(len(result.m_generation_ids[0]) for result in results)

    return timed(run)


def exported(directory: Path) -> Path:
    """The same weights in OpenVINO's form beside the model, made now if they are not there."""
    target = directory.with_name(f"{directory.name}-openvino")
    if not target.is_dir():
        unfinished = target.with_suffix(".unfinished")
        tool = Path(sys.executable).with_name("optimum-cli")
        how = ("--task", "text-generation-with-past", "--weight-format", "fp16")
        subprocess.run([tool, "export", "openvino", "--model", directory, *how, unfinished], check=True)
        unfinished.rename(target)
    return target


if __name__ == "__main__":
    answer_turns(build, "openvino-genai", "openvino")

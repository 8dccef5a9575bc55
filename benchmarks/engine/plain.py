"""Transformers' own generation, in its defaults but for memory: static batches, and its continuous batching."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers

from benchmarks.common.turns import THREADS, Answer, Order, Request, TurnError, answer_turns, timed

RESULT_TIMEOUT_S = 600.0
MEMORY_SHARE = 0.4
"""Of what is free, for continuous batching. By its default, 0.6, it takes 14 of 22 GB, and was killed for want of
memory beside the other engines; with 0.4 it takes 10, and is no slower."""


def build(options: Mapping[str, Any]) -> Callable[[Order], Answer]:
    """One model for both; an order's `batch` asks for static batches of that size."""
    torch.set_num_threads(THREADS)
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options["directory"], dtype=getattr(torch, options["dtype"]), attn_implementation="sdpa"
    )
    model.eval().requires_grad_(False)
    model.generation_config.eos_token_id = None

    def serve(order: Order) -> Answer:
        batch = order.get("batch")
        return timed(static(model, batch))(order) if batch else continuous(model)(order["requests"])

    return serve


def static(model: "transformers.PreTrainedModel", batch: int) -> Callable[[Sequence[Request]], int]:
    """`generate` on padded batches in the order of arrival; each runs until its longest request is done."""

    def run(requests: Sequence[Request]) -> int:
        for start in range(0, len(requests), batch):
            part = requests[start : start + batch]
            widest = max(len(prompt) for prompt, _ in part)
            ids = torch.tensor([[0] * (widest - len(prompt)) + prompt for prompt, _ in part])
            mask = torch.tensor([[0] * (widest - len(prompt)) + [1] * len(prompt) for prompt, _ in part])
            longest = max(tokens for _, tokens in part)
            model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=longest, pad_token_id=0)
        return sum(tokens for _, tokens in requests)

    return run


def continuous(model: "transformers.PreTrainedModel") -> Callable[[Sequence[Request]], Answer]:
    """What `generate_batch` runs inside, through its manager, since only that takes a length per request. Its time is
    that from the first request on: by then the manager stands, with its KV and what it captures of a GPU's steps."""
    config = transformers.GenerationConfig(do_sample=False, max_new_tokens=1, eos_token_id=-1, pad_token_id=0)
    batching = transformers.ContinuousBatchingConfig(max_memory_percent=MEMORY_SHARE)

    def run(requests: Sequence[Request]) -> Answer:
        made = 0
        with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=batching, timeout=5.0
        ) as manager:
            began = time.perf_counter()
            for prompt, tokens in requests:
                manager.add_request(prompt, max_new_tokens=tokens)
            for _ in requests:
                output = manager.get_result(timeout=RESULT_TIMEOUT_S)
                if output is None or output.error:
                    raise TurnError(f"continuous batching failed: {output and output.error}")
                made += len(output.generated_tokens)
            return {"seconds": time.perf_counter() - began, "tokens": made}

    return run


if __name__ == "__main__":
    answer_turns(build, "transformers", "torch")

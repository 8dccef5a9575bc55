"""vLLM's real scheduler with our lanes, stepped by hand over a model that is made up.

For `scenarios.py`. A token that is sampled tells its request and its index, so a stream that lost, doubled or swapped a
token shows it.
"""

from collections import defaultdict, deque
from collections.abc import Mapping

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.engine_priority import encode
from fairlane.worker.vllm.lane_scheduler import LaneScheduler

NAME = "fairlane.worker.vllm.LaneScheduler"
BLOCK = 16
SLOTS = 8
FAR_MS = 4e12
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "vocab_size": 1_000_000,
    "max_position_embeddings": 2048,
}


class Known(CostModel):
    """What steps take is told; how long these ones took says nothing."""

    def __init__(self, base_ms: float, token_ms: float) -> None:
        super().__init__()
        self.know((base_ms, 1.0, token_ms, 0.0, 0.0), (1.0, 1.0), 2.0 * base_ms)

    def observe(self, *_: object) -> None:
        """Learn nothing."""


class Stepped:
    """A scheduler, and the steps that are planned and not done yet: two with async scheduling, as in vLLM."""

    def __init__(
        self,
        config: VllmConfig,
        blocks: int = 2_000,
        depth: int = 2,
        lanes: Mapping[str, Mapping[str, float]] | None = None,
        tokens: int = 256,
    ) -> None:
        config.cache_config.num_gpu_blocks = blocks
        config.scheduler_config.async_scheduling = depth > 1
        config.scheduler_config.max_num_scheduled_tokens = tokens
        config.additional_config = {"fairlane": {"lanes": lanes or {}}}
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.scheduler = LaneScheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=True,
        )
        self.blocks = blocks
        self.depth = depth
        self.numbers: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = defaultdict(list)
        self.planned: deque[tuple[SchedulerOutput, dict[str, list[int]]]] = deque()
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    def add(
        self,
        name: str,
        priority: int,
        prompt: int = 20,
        tokens: int = 10,
        tenant: str = "",
        grammar: object = None,
        begun: int = 0,
        is_paced: bool = False,
    ) -> Request:
        """`grammar`: compiled, as vLLM's; `begun`: tokens of the prompt that are of it. `is_paced`: by who sends it."""
        number = self.numbers[name] = len(self.numbers)
        extra = {"fairlane_tenant": tenant, "fairlane_begun": begun, "fairlane_paced": is_paced}
        form = StructuredOutputsParams(grammar="start:") if grammar else None
        asked = SamplingParams(max_tokens=tokens, ignore_eos=True, extra_args=extra, structured_outputs=form)
        request = Request(
            request_id=name,
            prompt_token_ids=[number * 1_000 + place for place in range(prompt)],
            sampling_params=asked,
            pooling_params=None,
            priority=priority,
            block_hasher=self.hasher,
        )
        if grammar:
            request.structured_output_request.grammar = grammar
        self.requests[name] = request
        self.scheduler.add_request(request)
        return request

    def token(self, name: str, index: int) -> int:
        return self.numbers[name] * 1_000 + index

    def step(self) -> dict[str, int]:
        """Plan one step, and end the eldest where enough are planned; returns the tokens of each request planned."""
        output = self.scheduler.schedule()
        sampled = {}
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            index = request.num_computed_tokens - request.num_prompt_tokens
            sampled[name] = [] if request.is_prefill_chunk else [self.token(name, index)]
        self.planned.append((output, sampled))
        if len(self.planned) >= self.depth or not output.num_scheduled_tokens:
            self.end_one()
        return dict(output.num_scheduled_tokens)

    def end_one(self) -> None:
        output, sampled = self.planned.popleft()
        names = [*sampled]
        done = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[*sampled.values()],
        )
        for outputs in self.scheduler.update_from_output(output, done).values():
            for one in outputs.outputs:
                self.outputs[one.request_id] += one.new_token_ids

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def run_out(self, most: int = 5_000) -> None:
        """Step until nothing is left, and see that every stream that was not aborted is whole."""
        for _ in range(most):
            if not (self.scheduler.has_unfinished_requests() or self.planned):
                break
            self.step()
        assert not self.scheduler.has_unfinished_requests(), f"not done after {most} steps"
        while self.planned:
            self.end_one()
        for name, request in self.requests.items():
            if request.status not in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR):
                whole = [self.token(name, index) for index in range(request.max_tokens)]
                assert self.outputs[name] == whole, f"{name}: {self.outputs[name]} is not {whole}"
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert free == self.blocks - 1, f"{self.blocks - 1 - free} blocks were never freed"

    def running(self) -> list[str]:
        return [one.request_id for one in self.scheduler.running]


def high(due_ms: float = FAR_MS) -> int:
    return encode(0, due_ms)


def low(due_ms: float = FAR_MS) -> int:
    return encode(1, due_ms)


def flooded(engine: Stepped, count: int = 20, tokens: int = 10) -> Stepped:
    for number in range(count):
        engine.add(f"low{number}", low(), tokens=tokens)
    engine.steps(4)
    return engine

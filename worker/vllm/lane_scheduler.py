"""`LaneScheduler`: vLLM's scheduler with our lanes, loaded by `--scheduler-cls`.

Before each step of vLLM, running requests of lower lanes yield to waiting requests of upper lanes, vLLM's lists of
running and waiting requests are sorted in our order, and prompts of lower lanes are limited so that the first lane
keeps its pace."""

import itertools
import logging
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import vllm
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request, RequestStatus

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.worker.vllm import require_supported
from fairlane.worker.vllm.guarded_scheduler import GuardedScheduler
from fairlane.worker.vllm.lane_policy import Claim, LanePolicy, Progress, Rank, claim_of, service
from fairlane.worker.vllm.pace import Allowance, Load, allowance
from fairlane.worker.vllm.ranked_queue import RankedQueue
from fairlane.worker.vllm.settings import read_settings
from fairlane.worker.vllm.yielding import Candidate, Demand, Room, choose_yielding, slot_floors

log = logging.getLogger("vllm.fairlane")  # vLLM configures handlers only for its own loggers

# Interval at which waiting requests are reordered, and the maximum share of time for it. New ones are ordered at once.
RERANK_MS, RERANK_PART = 50.0, 0.01
# Maximum number of steps without yielding after it helped no request.
LONGEST_PAUSE = 64


class _Step(NamedTuple):
    output: SchedulerOutput
    features: StepFeatures
    began_ms: float


class LaneScheduler(GuardedScheduler):
    """The target of `--scheduler-cls`. Raises UnsupportedVllm or SettingsError."""

    def __new__(cls, vllm_config: VllmConfig, *args: object, **kwargs: object) -> Self:
        is_async = vllm_config.scheduler_config.async_scheduling
        made: Self = super().__new__(AsyncLaneScheduler if is_async else cls)
        return made

    def __init__(self, vllm_config: VllmConfig, *args: object, **kwargs: object) -> None:
        require_supported(vllm.__version__)
        super().__init__(vllm_config, *args, **kwargs)
        settings = read_settings(vllm_config.additional_config)
        lanes = settings.lanes.lanes()
        self._costs = CostModel()
        self._first = min(lanes.values(), key=lambda one: one.rank)
        self._lanes: LanePolicy | None = LanePolicy(lanes, self._costs)
        self._is_disabled = False
        self._floors = slot_floors(lanes.values(), self.max_num_active_reqs)
        self._cuts_prompts = self.scheduler_config.enable_chunked_prefill and not self.need_mamba_block_aligned_split
        self._claims: dict[str, Claim] = {}
        # Waiting requests of lanes below their slot floors; they rank first.
        self._first_of_floors: set[str] = set()
        self._in_order: list[Request] = []
        # Time of the next complete ranking.
        self._rank_ms = 0.0
        self._running_ranks: dict[str, Rank] = {}
        self._lacking: dict[int, int] = {}
        self._allowance: Allowance | None = None
        self._beneficiaries: list[Request] = []
        self._fruitless = self._pause_until_step = 0
        self._steps: deque[_Step] = deque()
        self._ended_ms = 0.0
        self.waiting = RankedQueue(self._waiting_rank)
        self._own_policy = SchedulingPolicy(self.scheduler_config.policy)
        self.policy = SchedulingPolicy.FCFS
        log.info("lanes %s in %d slots, floors %s", ", ".join(lanes), self.max_num_active_reqs, self._floors)

    @property
    def _policy(self) -> LanePolicy:
        assert self._lanes is not None  # noqa: S101 - callers are guarded
        return self._lanes

    def _claim(self, request: Request) -> Claim:
        claim = self._claims.get(request.request_id)
        if claim is None:
            extra = request.sampling_params.extra_args if request.sampling_params is not None else None
            claim = claim_of(request.priority, extra, request.arrival_time * 1e3, self._policy.lanes.values())
            self._claims[request.request_id] = claim
        return claim

    def _waiting_rank(self, request: Request) -> Rank:
        try:
            keeps_floor = request.request_id in self._first_of_floors
            return self._policy.waiting_rank(self._claim(request), _progress(request), keeps_floor=keeps_floor)
        except Exception:  # noqa: BLE001 - a fault of ours must not end the engine
            if not self._is_disabled:
                self._disable("ranking a request")
            return Rank(1, 0, 0, False, 1, 1, math.inf, 0.0, math.inf, request.arrival_time * 1e3)

    def _arrive(self, request: Request) -> None:
        if request.request_id not in self.requests:  # otherwise it is the next input of a session
            self._policy.arrive(self._claim(request))

    def _arrange(self) -> None:
        self._allowance = None
        if self._pause_state != PauseState.UNPAUSED:
            return
        began_ms, lacking = _now_ms(), self._lack()
        is_due = began_ms >= self._rank_ms
        if is_due or lacking != self._lacking:
            self._rank_anew(lacking)
            self._running_ranks.clear()
        if is_due or self.running != self._in_order:
            self.running.sort(key=self._running_rank)
        if is_due:
            ended_ms = _now_ms()
            self._rank_ms = ended_ms + max(RERANK_MS, (ended_ms - began_ms) / RERANK_PART)
        if self.current_step >= self._pause_until_step:
            self._yield_to_waiting()
        self._in_order = [*self.running]

    def _running_rank(self, request: Request) -> Rank:
        rank = self._running_ranks.get(request.request_id)
        if rank is None:
            rank = self._policy.running_rank(self._claim(request), _progress(request))
            self._running_ranks[request.request_id] = rank
        return rank

    def _rank_anew(self, lacking: dict[int, int]) -> None:
        waiting = self.waiting.unordered()
        self._claims = {one: claim for one, claim in self._claims.items() if one in self.requests}
        self._policy.begin(time.time() * 1e3, map(self._claim, waiting), map(self._claim, self.running))
        self._first_of_floors.clear()
        for rank, count in lacking.items():
            here = [one for one in waiting if self._claim(one).lane.rank == rank and _may_start(one)]
            free = self._room().blocks  # a request that does not fit would block all requests behind it
            fitting = (one for one in sorted(here, key=self._waiting_rank) if self._needs(one) <= free)
            self._first_of_floors.update([one.request_id for one in itertools.islice(fitting, count)])
        self.waiting.rerank()
        self._lacking = lacking

    def _lack(self) -> dict[int, int]:
        running = Counter([self._claim(one).lane.rank for one in self.running])
        lacking = {rank: floor - running[rank] for rank, floor in self._floors.items() if running[rank] < floor}
        if lacking:
            waiting = {self._claim(one).lane.rank for one in self.waiting.unordered()}
            lacking = {rank: count for rank, count in lacking.items() if rank in waiting}
        return lacking

    def _yield_to_waiting(self) -> None:
        policy = self._policy
        if not (self.running and (self.waiting or self.kv_holding_waiting)):
            return
        last = policy.lane_rank(self._claim(self.running[-1]))
        is_plain = not (self.kv_holding_waiting or self._first_of_floors)
        if is_plain and policy.lane_rank(self._claim(self.waiting.peek_request())) >= last:
            return
        # In vLLM's order of admission.
        waiting = self.waiting.first(self.max_num_active_reqs + len(self._first_of_floors))
        above = [one for one in (*self.kv_holding_waiting, *waiting) if policy.lane_rank(self._claim(one)) < last]
        if not above:
            return
        ranks = Counter([self._claim(one).lane.rank for one in self.running])
        if all(count <= self._floors.get(rank, 0) for rank, count in ranks.items() if rank):
            return
        above = [one for one in above if self._is_ready(one)]
        demands = [Demand(policy.lane_rank(self._claim(one)), self._needs(one), _to_compute(one)) for one in above]
        if demands:
            yielding, met = choose_yielding(
                demands, self._candidates(min(one.rank for one in demands)), self._room(), self._floors
            )
            self._preempt([self.running[index] for index in yielding])
            self._beneficiaries = above[:met] if yielding else []

    def _is_ready(self, request: Request) -> bool:
        if not self._handle_blocked_waiting_request(request):
            return False
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        if not (self.lora_config and request.lora_request):
            return True
        loaded = {one.lora_request.lora_int_id for one in self.running if one.lora_request}
        return request.lora_request.lora_int_id in loaded or len(loaded) < self.lora_config.max_loras

    def _room(self) -> Room:
        slots = self.max_num_active_reqs - len(self.running) - self.num_waiting_for_streaming_input
        free = self.kv_cache_manager.block_pool.get_num_free_blocks() - self.kv_cache_manager.watermark_blocks
        tokens = self.max_num_scheduled_tokens - len(self.running)
        return Room(slots - len(self._first_of_floors), free, tokens)

    def _candidates(self, above: int) -> list[Candidate]:
        candidates = []
        for index, request in enumerate(self.running):
            claim = self._claim(request)
            rank = self._policy.lane_rank(claim)
            if rank > above and self._request_blocks_can_be_freed(request):
                freed = _freed_blocks(self.kv_cache_manager.get_blocks(request.request_id).blocks)
                candidates.append(Candidate(index, rank, claim.lane.rank, freed))
        return candidates

    def _needs(self, request: Request) -> int:
        """Return the KV blocks needed to admit it, for prompt and output, without those shared in the prefix cache."""
        blocks: int = self._request_remaining_blocks(request)
        manager = self.kv_cache_manager
        if blocks and not request.num_computed_tokens and blocks > manager.block_pool.get_num_free_blocks():
            found = manager.get_computed_blocks(request)[0].blocks
            blocks -= sum([1 for group in found for block in group if block.ref_cnt > 0 and not block.is_null])
        return max(0, blocks)

    def _preempt(self, victims: list[Request]) -> None:
        now_s = time.monotonic()
        for request in victims:
            self._running_ranks.pop(request.request_id, None)
            self.running.remove(request)
            self._preempt_request(request, now_s, drop_stale_output=self.requires_kv_delivery)

    def _cut(self, request: Request, computed: int, tokens: int) -> int:
        is_decode = tokens <= 1 + self.num_spec_tokens
        if is_decode or not self._cuts_prompts or request.has_encoder_inputs:
            return tokens
        claim = self._claim(request)
        if claim.is_paced or self._policy.lane_rank(claim) == 0:
            return tokens
        if self._allowance is None:
            self._allowance = allowance(self._load(), self._first, self._costs, self.max_num_scheduled_tokens)
        granted = self._allowance.take(tokens, computed)
        if granted or request.status == RequestStatus.RUNNING:
            return granted
        if request.request_id in self._first_of_floors or self._holds_kv_blocks(request):
            return 1  # upper lanes' requests would wait behind this one
        # Those behind it get no tokens either: vLLM 0.33 would look up the cached blocks of each.
        self.waiting.is_held = True
        return 0

    def _load(self) -> Load:
        decodes = context = first_decodes = first_tokens = 0
        for request in self.running:
            tokens, is_first = _to_compute(request), self._policy.lane_rank(self._claim(request)) == 0
            if tokens <= 1 + self.num_spec_tokens:
                decodes, context = decodes + 1, context + request.num_computed_tokens
                first_decodes += is_first
            elif is_first:
                first_tokens += tokens
        slots = self.max_num_active_reqs - len(self.running)
        if slots > 0 and self.waiting:
            waiting = [one for one in self.waiting.first(slots) if self._policy.lane_rank(self._claim(one)) == 0]
            first_tokens += sum(map(_to_compute, waiting))
        return Load(decodes, context, first_decodes, min(first_tokens, self.max_num_scheduled_tokens))

    def _note(self, output: SchedulerOutput) -> None:
        self.waiting.is_held = False
        rows = prefilled = context = attention = 0
        served: defaultdict[tuple[LaneName, str], float] = defaultdict(float)
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            claim = self._claim(request)
            end, is_sampled = request.num_computed_tokens, not request.is_prefill_chunk
            rows += 1
            if tokens == 1:
                context += end
            else:
                prefilled, attention = prefilled + tokens, attention + tokens * end
            again = request.num_preemptions > 0  # recomputed tokens were charged before
            computed = 0 if again else tokens - is_sampled
            served[claim.lane.name, claim.tenant] += service(claim, computed, is_sampled)
        for (lane, tenant), amount in served.items():
            self._policy.charge(lane, tenant, amount)
        if rows:
            self._steps.append(_Step(output, StepFeatures(rows, prefilled, context, attention), _now_ms()))
        if self._beneficiaries:
            helped = any(one.status == RequestStatus.RUNNING for one in self._beneficiaries)
            self._fruitless = 0 if helped else self._fruitless + 1
            if not helped:
                self._pause_until_step = self.current_step + min(LONGEST_PAUSE, 1 << self._fruitless)
            self._beneficiaries = []

    def _learn(self, output: SchedulerOutput) -> None:
        """Learn a step's duration, from its plan, or from the end of the previous one if that was later."""
        ended_ms = _now_ms()
        while self._steps and output.total_num_scheduled_tokens:
            step = self._steps.popleft()
            if step.output is output:
                began_ms = max(step.began_ms, self._ended_ms)
                self._costs.observe(step.features, ended_ms - began_ms, 0, 0.0)
                break
        self._ended_ms = ended_ms


class AsyncLaneScheduler(LaneScheduler, AsyncScheduler):  # type: ignore[misc]
    """A `LaneScheduler` that plans a step during the previous one; vLLM's default on most platforms."""


def _now_ms() -> float:
    return time.monotonic() * 1e3


def _progress(request: Request) -> Progress:
    return Progress(request.num_tokens, request.num_computed_tokens, request.num_output_tokens > 0)


def _to_compute(request: Request) -> int:
    tokens: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    return tokens


def _may_start(request: Request) -> bool:
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and not request.num_stale_output_tokens


def _freed_blocks(groups: Iterable[Iterable[Any]]) -> int:
    return sum([1 for blocks in groups for block in blocks if block.ref_cnt == 1 and not block.is_null])

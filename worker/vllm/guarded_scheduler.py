"""vLLM's scheduler with our hooks, which cannot crash the engine: after a fault, vLLM's own order applies."""

import logging
from abc import abstractmethod
from collections.abc import Callable

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from fairlane.worker.vllm.lane_policy import LanePolicy, begun_of
from fairlane.worker.vllm.ranked_queue import RankedQueue

log = logging.getLogger("vllm.fairlane")  # vLLM configures handlers only for its own loggers


class GuardedScheduler(Scheduler):  # type: ignore[misc] # vllm is not installed where types are checked
    """Calls the hooks of a subclass, which also initialises the attributes."""

    waiting: RankedQueue[Request]
    # None once vLLM's own order applies.
    _lanes: LanePolicy | None
    _is_disabled: bool
    # vLLM's configured policy, restored after a fault.
    _own_policy: SchedulingPolicy

    @abstractmethod
    def _arrange(self) -> None: ...

    @abstractmethod
    def _note(self, output: SchedulerOutput) -> None: ...

    @abstractmethod
    def _learn(self, output: SchedulerOutput) -> None: ...

    @abstractmethod
    def _arrive(self, request: Request) -> None: ...

    @abstractmethod
    def _cut(self, request: Request, computed: int, tokens: int) -> int: ...

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._guard(self._arrange)
        output = super().schedule(throttle_prefills)
        self._guard(self._note, output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self._guard(self._learn, scheduler_output)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        return outputs

    def add_request(self, request: Request) -> None:
        self._guard(self._arrive, request)
        super().add_request(request)

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        if self._lanes is not None and not self._is_disabled:
            try:
                num_new_tokens = self._cut(request, num_computed_tokens, num_new_tokens)
            except Exception:  # noqa: BLE001 - a fault of ours must not end the engine
                self._disable("cutting a prompt")
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        return tokens

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        awaits_grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        is_ready: bool = super()._handle_blocked_waiting_request(request)
        return self._begins(request) if is_ready and awaits_grammar else is_ready

    def _begins(self, request: Request) -> bool:
        """Feed a grammar the output of an earlier run, now the end of the prompt; a mismatch ends the request."""
        try:
            begun = begun_of(request.sampling_params.extra_args)
            if not begun or self.structured_output_manager.accept_tokens(request, request.prompt_token_ids[-begun:]):
                return True
            fault: Exception = ValueError(f"the grammar does not accept the prompt's last {begun} tokens")
        except Exception as error:  # noqa: BLE001 - a fault of one request must not end the engine
            fault = error
        # As if the grammar had not compiled: vLLM then ends the request with an error.
        request.structured_output_request.grammar = fault
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        is_ready: bool = super()._handle_blocked_waiting_request(request)
        return is_ready

    def _guard(self, act: Callable[..., None], *given: object) -> None:
        if self._lanes is None:
            return
        if not self._is_disabled:
            try:
                act(*given)
            except Exception:  # noqa: BLE001 - a fault of ours must not end the engine
                self._disable(act.__name__)
        if self._is_disabled:
            self._retire()

    def _disable(self, where: str) -> None:
        self._is_disabled = True
        log.exception("fault in %s: vLLM's own order applies until a restart", where)

    def _retire(self) -> None:
        """Restore vLLM's queue. Never call it during vLLM's step, which walks the queue that this replaces."""
        waiting = create_request_queue(self._own_policy)
        for request in sorted(self.waiting.unordered(), key=lambda one: one.arrival_time):
            waiting.add_request(request)
        self.waiting, self.policy, self._lanes = waiting, self._own_policy, None

"""One gateway or worker of the fleet: `python -m tests.system.chaos.members gateway|worker`.

The worker is the real process with an engine whose next token is a checksum of all tokens before it, so that a lost,
doubled or foreign token changes every later one. On SIGUSR1 a member writes the sizes of its tables to CHAOS_STATE."""

import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

STATE, LINKS, STEP = "CHAOS_STATE", "CHAOS_LINKS", "CHAOS_STEP_S"
MODEL = "sum"
VOCABULARY, EOS = 97, 2
BLOCKS, BLOCK_SIZE, SLOTS, CONTEXT = 512, 16, 16, 1_024


def next_token(tokens: Sequence[int], choice: int) -> int:
    """Return the token after these, never an end of sequence."""
    return _token(zlib.crc32(bytes(tokens), choice))


def continuation(prompt: Sequence[int], choice: int, count: int) -> list[int]:
    """Return the undisturbed answer of a choice."""
    checksum, found = zlib.crc32(bytes(prompt), choice), list[int]()
    for _ in range(count):
        found.append(_token(checksum))
        checksum = zlib.crc32(bytes(found[-1:]), checksum)
    return found


def _token(checksum: int) -> int:
    return 3 + checksum % (VOCABULARY - 3)


def _tracked(kind: Any) -> "WeakSet[Any]":
    found: WeakSet[Any] = WeakSet()
    init = kind.__init__

    def __init__(self: Any, *given: Any, **named: Any) -> None:  # noqa: N807 - it replaces one
        init(self, *given, **named)
        found.add(self)

    kind.__init__ = __init__
    return found


def _report_on_signal(sizes: Callable[[], dict[str, int]]) -> None:
    path = Path(os.environ[STATE])

    def write(*_: object) -> None:
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(sizes()))
        unfinished.replace(path)

    signal.signal(signal.SIGUSR1, write)


def gateway() -> int:
    from fairlane.gateway.__main__ import main
    from fairlane.gateway.pipeline.delivery import Dispatcher
    from fairlane.gateway.pipeline.streams import JobStreams

    dispatchers, streams = _tracked(Dispatcher), _tracked(JobStreams)
    _report_on_signal(
        lambda: {
            "jobs": sum(len(each.jobs) for each in dispatchers),
            "streams": sum(len(numbers) for each in streams for numbers in each._streams.values()),
        }
    )
    return main()


def worker() -> int:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from fairlane.scheduler.planner.costs import CostModel
    from fairlane.scheduler.planner.planner import Planner
    from fairlane.scheduler.planner.steps import StepPlan, StepResult
    from fairlane.scheduler.protocol.messages import Lease, ModelCard
    from fairlane.worker import config, runtime
    from fairlane.worker.engine.engine import Engine, LookAhead, OpenedEngine, StepRunner
    from fairlane.worker.leases import HeldLeases
    from fairlane.worker.outlet import Outlet

    step_s, links = float(os.environ[STEP]), json.loads(os.environ[LINKS])

    class Sums(StepRunner):
        def __init__(self) -> None:
            self.tokens: dict[str, tuple[tuple[int, ...], list[list[int]]]] = {}

        def register(self, lease: Lease) -> None:
            job = lease.job
            self.tokens[job.job_id] = job.prompt, [list(ids) for ids in lease.generated or ((),) * job.n]

        def forget(self, job_id: str) -> None:
            self.tokens.pop(job_id, None)

        def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
            on_forward()
            began_s, tokens = time.perf_counter(), {}
            for row in plan.rows:
                if row.samples:
                    prompt, choices = self.tokens[row.seq.job_id]
                    output = choices[row.seq.choice]
                    assert len(output) == row.output_index, "a row of another history"
                    output.append(next_token((*prompt, *output), row.seq.choice))
                    tokens[row.seq] = output[-1]
            time.sleep(max(0.0, began_s + step_s - time.perf_counter()))
            return StepResult(number=plan.number, tokens=tokens, run_ms=1e3 * step_s)

    def open_engine(_settings: config.WorkerSettings) -> OpenedEngine:
        settings, costs = _settings.lanes.lanes(), CostModel()
        planner = Planner(
            lanes=settings,
            block_size=BLOCK_SIZE,
            blocks=BLOCKS,
            host_slots=32,
            max_sequences=SLOTS,
            max_step_tokens=512,
            costs=costs,
        )
        words = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0"))
        card = ModelCard(
            model=MODEL,
            tokenizer_json=words.to_str(),
            chat_template=None,
            context_length=CONTEXT,
            vocab_size=VOCABULARY,
            eos_token_ids=(EOS,),
        )
        return OpenedEngine(Engine(planner, Sums()), card, costs, 512)

    dial = runtime.dial

    def dial_through_proxy(
        worker_id: str, queue: str, registry: Any, gateway_id: str, address: str, peer: Any, **options: Any
    ) -> Any:
        through = f"tcp://127.0.0.1:{links[address.rpartition(':')[2]]}"
        return dial(worker_id, queue, registry, gateway_id, through, peer, **options)

    runtime.dial = dial_through_proxy
    outlets, held, planners = _tracked(Outlet), _tracked(HeldLeases), _tracked(Planner)
    _report_on_signal(
        lambda: {
            "streams": sum(len(each._streams) for each in outlets),
            "streams by gateway": sum(len(link.streams) for each in outlets for link in each._gateways.values()),
            "leases": sum(map(len, held)),
            "KV blocks": sum(BLOCKS - each.blocks_free for each in planners),
        }
    )
    settings = config.read(config.parse([]), os.environ)
    config.start_logging(settings.log_level)
    return runtime.serve(settings, os.environ, open_engine)


if __name__ == "__main__":
    status = gateway() if sys.argv.pop(1) == "gateway" else worker()
    os._exit(status)

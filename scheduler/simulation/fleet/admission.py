"""Admission in a fleet: a gateway knows the workers' costs, its own open requests, and reports of the other gateways.

Workers are alike and report once. Reports of gateways are as old as their heartbeats."""

from collections.abc import Sequence

from fairlane.scheduler.admission.decide import Admitted, assess
from fairlane.scheduler.admission.open_requests import OpenRequests
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome, WorkerStatus
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.fleet.rows_worker import RowsShape
from fairlane.scheduler.simulation.simulated_admission import request_of
from fairlane.scheduler.simulation.workload import Arrival, Record

BLOCK_TOKENS = 16
# KV tokens of a row: more than any request needs, since this worker's KV is not modelled.
ROW_TOKENS = 1 << 20


class Gateways:
    """The gateways of a fleet."""

    def __init__(self, count: int, workers: int, kind: RowsShape) -> None:
        # Jobs with a guarantee that the queue confirmed.
        self.guaranteed: set[str] = set()
        self._workers: Sequence[WorkerStatus] = (_status(kind),) * workers
        self._open = [OpenRequests(DEFAULT_LANES) for _ in range(count)]

    def decide(self, gateway: int, arrival: Arrival, now_ms: float) -> Admitted | None:
        request, known = request_of(arrival), self._open[gateway]
        answer = assess(request, workers=self._workers, open_requests=known, now_ms=now_ms)
        if isinstance(answer, Admitted):
            known.enter(arrival.job_id, request, guaranteed=answer.guaranteed, now_ms=now_ms, load=answer.load)
            return answer
        if answer.code == "deadline_unattainable" and answer.retry_after_ms is not None:
            known.refuse(request, now_ms)
        return None

    def put(self, gateway: int, job_id: str, now_ms: float, *, guaranteed: bool) -> None:
        """Record the queue's answer: it may have refused the guarantee."""
        if guaranteed:
            self.guaranteed.add(job_id)
        else:
            self._open[gateway].demote(job_id, now_ms)

    def first_token(self, gateway: int, job_id: str, now_ms: float) -> None:
        self._open[gateway].produced(job_id, 1, now_ms)

    def ended(self, gateway: int, record: Record) -> None:
        known, job_id = self._open[gateway], record.arrival.job_id
        known.produced(job_id, record.arrival.output_tokens, record.end_ms or 0.0, are_last=True)
        known.leave(job_id, finished=record.outcome is Outcome.FINISHED)

    def exchange(self, gateway: int, queue: LaneQueue, now_ms: float) -> None:
        known = self._open[gateway]
        exchanged = queue.exchange_reports(int(now_ms), str(gateway), known.report(now_ms), known.refused_us())
        known.receive_reports(exchanged.reports, exchanged.asked, now_ms)


def _status(kind: RowsShape) -> WorkerStatus:
    token_ms = kind.step_ms / kind.step_tokens
    return WorkerStatus(
        worker_id="worker",
        model="model",
        queue="queue",
        card_sha256="",
        started_at_ms=0.0,
        block_size=BLOCK_TOKENS,
        blocks_total=kind.rows * ROW_TOKENS // BLOCK_TOKENS,
        max_sequences=kind.rows,
        step_ms=kind.step_ms,
        single_stream_ms=kind.step_ms,
        step_weights=(kind.step_ms, 0.0, token_ms, 0.0, 0.0),
    )

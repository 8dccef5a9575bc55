"""What tests of admission have in common: a worker whose times are known, and the two levels of a promise."""

from fairlane.scheduler.admission.demand import ServiceClass
from fairlane.scheduler.protocol.messages import WorkerStatus

WORKERS = (
    WorkerStatus(
        worker_id="worker",
        model="model",
        queue="model@0",
        card_sha256="0",
        started_at_ms=0.0,
        blocks_total=1_000,
        max_sequences=64,
        step_ms=20.0,
        step_weights=(20.0, 0.1, 1.0, 1e-4, 1e-6),
    ),
)
PROMISED, BEST_EFFORT = ServiceClass(0, best_effort=False), ServiceClass(0, best_effort=True)

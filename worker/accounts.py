"""Each job's measured consumption: its share of the steps' time, and the KV blocks that it holds.

A block counts from the step in which it first appears in a row's table until the sequence yields it or its job ends. A
block that several sequences share counts for each. Used only on the event loop."""

from fairlane.scheduler.planner.steps import SeqId, StepPlan


class JobAccount:
    """One job's consumption, over all its choices."""

    __slots__ = ("_held", "block_ms", "gpu_ms")

    def __init__(self) -> None:
        self.gpu_ms = 0.0
        self.block_ms = 0.0
        # By choice: the number of blocks, and since when, in ms.
        self._held: dict[int, tuple[int, float]] = {}

    def set_blocks(self, choice: int, blocks: int, now_ms: float) -> None:
        before = self._held.get(choice)
        if before is not None:
            self.block_ms += before[0] * (now_ms - before[1])
        self._held[choice] = (blocks, now_ms)

    def close(self, now_ms: float) -> None:
        for choice in self._held:
            self.set_blocks(choice, 0, now_ms)


class StepAccounts:
    """The accounts of all jobs that the worker holds."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._jobs: dict[str, JobAccount] = {}

    def add(self, plan: StepPlan, took_ms: float, began_ms: float) -> None:
        jobs = self._jobs
        for one in plan.yields:
            if one.seq.job_id in jobs:
                jobs[one.seq.job_id].set_blocks(one.seq.choice, one.first // self._block_size, began_ms)
        if not plan.rows:
            return
        token_ms = took_ms / sum([len(row.token_ids) for row in plan.rows])
        for row in plan.rows:
            seq: SeqId = row.seq
            account = jobs.get(seq.job_id)
            if account is None:
                account = jobs[seq.job_id] = JobAccount()
            account.gpu_ms += token_ms * len(row.token_ids)
            account.set_blocks(seq.choice, len(row.block_table), began_ms)

    def close(self, job_id: str, now_ms: float) -> tuple[int, int]:
        """Close an ended job's account; return its microseconds of step time and its KV block milliseconds."""
        account = self._jobs.pop(job_id, None)
        if account is None:
            return 0, 0
        account.close(now_ms)
        return round(account.gpu_ms * 1e3), max(0, round(account.block_ms))

    def drop(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

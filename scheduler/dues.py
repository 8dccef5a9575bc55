"""When a first token is due: the one rule of door, queue and planner.

A stated end pulls the first token forward by the time that the others take. How long that is the door knows best, from
what workers report; it writes the pace that it reckoned with on the job, so that nobody orders by another figure.
"""

import math

from scheduler.messages import Job


def first_due_ms(job: Job) -> float:
    """From a job's arrival to when its first token is due: by its target, or as stated, whatever is earliest."""
    stated = job.ttft_ms if job.hard_ttft_ms is None else min(job.ttft_ms, job.hard_ttft_ms)
    return max(0.0, next_due_ms(stated, job.deadline_ms, job.max_tokens, job.pace_ms or job.tpot_ms))


def promised_due_ms(job: Job) -> float:
    """From its arrival to when the first token of a guaranteed job must be there: by what was stated alone."""
    pace_ms = job.pace_ms or job.tpot_ms
    stated = None if job.hard_ttft_ms is None else job.hard_ttft_ms - pace_ms
    return max(0.0, next_due_ms(stated, job.deadline_ms, job.max_tokens, pace_ms))


def next_due_ms(ttft_ms: float | None, end_ms: float | None, tokens: int, pace_ms: float) -> float:
    """The same of any request with so many tokens yet to come, each `pace_ms` after its elder. `ttft_ms`: None once the
    first is there. Infinity where nothing is due; below zero where it is too late."""
    dues = [] if ttft_ms is None else [ttft_ms]
    if end_ms is not None:
        dues.append(end_ms - tokens * pace_ms)
    return min(dues, default=math.inf)

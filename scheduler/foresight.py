"""The next step's rows as they will be if nothing but a token comes of each row of the step that runs.

A guess, made while there is time, for the runner to make ready: it takes nothing from anybody, and the plan that
follows need not agree with it.
"""

from collections.abc import Mapping

from scheduler.blocks import BlockPool
from scheduler.sequence import Sequence
from scheduler.steps import Row, SeqId, StepPlan

NOT_YET_KNOWN = 0
"""Stands for the token that the running step is about to yield."""


def foreseen(plan: StepPlan, running: Mapping[SeqId, Sequence], pool: BlockPool) -> tuple[Row, ...]:
    """Rows of the step after `plan`, which runs; none where more is to be decided there than who comes a token further:
    a prompt is computed, a sequence ends or reaches its grant, or the pool has no block left that nobody keeps."""
    rows, full = [], 0
    for row, seq in zip(plan.rows, running.values(), strict=True):
        if len(row.token_ids) > 1 or not row.samples or row.output_index + 1 >= seq.granted_until:
            return ()
        table, first = row.block_table, row.first_position + 1
        if first == len(table) * pool.block_size:
            full += 1
            block = pool.next_free(full)
            if block is None:
                return ()
            table = (*table, block)
        rows.append(Row(row.seq, (NOT_YET_KNOWN,), first, table, True, row.output_index + 1))
    return tuple(rows)

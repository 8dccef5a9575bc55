"""Validates the input of a batch before its first line runs."""

import asyncio
from collections.abc import Sequence
from itertools import islice

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import Batch, BatchFault
from fairlane.gateway.batches.host import BatchHost
from fairlane.gateway.batches.lines import DUPLICATE, LineIndex
from fairlane.gateway.batches.persistence import persist
from fairlane.gateway.batches.storage import NotStored, Storage, read_all

# Maximum number of faults that a batch reports.
MOST_LISTED = 20
INPUT_GONE = BatchFault("input_file_not_found", "The input file no longer exists.", param="input_file_id")


async def input_faults(batch: Batch, root: str, host: BatchHost) -> Sequence[BatchFault]:
    """Return why a batch that has not started cannot run; empty if it can, or if its file is not stored here."""
    if batch.status != "validating":
        return []
    found = await persist(lambda: host.files.get(root, batch.account, batch.input_file_id))
    if found is None:
        return [INPUT_GONE]
    if not found.lines:
        return [BatchFault("empty_file", "The input file has no line.", param="input_file_id")]
    index = await read_index(host.storage, batch)
    return [] if index is None else await asyncio.to_thread(_line_faults, index, is_readable=bool(found.readable))


def _line_faults(index: LineIndex, *, is_readable: bool) -> Sequence[BatchFault]:
    if not is_readable:
        message = "This line is not a valid JSON object."
        return [BatchFault("invalid_json_line", message, line=entry.number) for entry in islice(index, MOST_LISTED)]
    message = "An earlier line of the file has the same `custom_id`; each must be unique in its file."
    doubled = (entry for entry in index if entry.flags & DUPLICATE)
    return [
        BatchFault("duplicate_custom_id", message, line=entry.number, param="custom_id")
        for entry in islice(doubled, MOST_LISTED)
    ]


async def read_index(storage: Storage, batch: Batch) -> LineIndex | None:
    """Return the index of a batch's input; None if it is not stored here."""
    try:
        return LineIndex(await persist(lambda: read_all(storage, files.index(batch.input_file_id))))
    except NotStored:
        return None

"""Tenants' files, and batches of requests: one input file, and one file each for outputs and errors.

    files.py, storage.py        files: their metadata in Redis, their contents in a folder or bucket
    lines.py                    a file's lines: indexed on upload, parsed when they run
    batch.py, batch_records.py  one batch, and all batches in Redis: created, taken, renewed, ended
    runner.py                   the batches that this gateway runs; open it first
    host.py                     the gateway as its running batches see it
    open_batch.py               one batch from its input file to its output files
    input_lines.py              the lines of its input that have not ended
    line_runner.py, line_call.py  the running lines of a batch, each run as an ordinary request
    results.py                  responses: segments while the batch runs, two files at its end
    erasure.py                  erases a deleted tenant's files and batches
    keys.py                     Redis keys, and the scripts in `lua/`

A line goes through `gateway.pipeline` like a client's request, with the same budgets and queues."""

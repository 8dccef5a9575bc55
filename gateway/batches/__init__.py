"""Tenants' files, and batches of requests that are read from one and answered into others.

    files.py, storage.py        what is known of files, and where their bytes stand
    lines.py                    a file's lines: found as it comes, read as they run
    batch.py, batch_records.py  one batch, and all of them in Redis: made, taken, renewed, ended
    runner.py                   which batches this gateway runs; open it first
    open_batch.py               one batch from its file to its outputs
    line_runner.py, line_call.py  its lines that are under way, each as a request like any other
    results.py                  answers: segments while it runs, two files at its end
    erasure.py                  what is erased with a deleted tenant
    keys.py, scripts.py         Redis keys and scripts (`lua/`)

The endpoints of files and batches in `gateway.api` call in, and the application, which gives the runner its endpoints.
It decides nothing about budgets or queues: a line goes through `gateway.requests` as a client's request does. Never
imports `gateway.api`.
"""

"""A request on its way, in this order:

    prepare.py        bytes to a plan: parsed, tokenised, admitted
    service_level.py  lane, deadlines and tier, from what was asked and what the tenant may
    constraints.py    the form of its answer and its tools, as one grammar
    admission.py      whether it is let in, and what it is promised
    prices.py         what its tokens cost, as this gateway knows it
    submit.py         its tokens reserved, its jobs put, all or nothing
    request.py        the request and its jobs while they run: who owns them when
    delivery.py       events from the queues to the jobs
    stream.py         tokens to text, deadlines, progress
    grants.py         more output while it runs
    settlement.py     its one end, charged once

`recovery.py`, `orphans.py` and `resume.py` take up what others have lost; `guarded_quotas.py` goes on while the store
is away. Called by `gateway.api.generate`; open `request.py` first. Never imports Starlette's request nor the worker.
"""

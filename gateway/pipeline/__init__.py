"""One request's way through the gateway, in this order:

    prepare.py        parse, tokenize and plan it
    media_desk.py     read its images and sounds, and have a worker measure them
    fitting.py        find its model, check its fields against it, and cut its output to the context
    constraints.py    combine its response format and its tools into one grammar
    admission.py      decide whether it is admitted, and with which guarantee
    prices.py         look up what its tokens cost
    submit.py         reserve its tokens and enqueue its jobs, all or nothing
    job_message.py    the message that a worker receives
    delivery.py       deliver events to its jobs, and keep in touch with their queues
    streams.py        receive the tokens of its jobs over links from workers
    stream.py         turn tokens into text, report progress, and end the stream at a deadline
    grants.py         grant more output while it runs
    settlement.py     end it once, and charge it once

`recovery.py`, `orphans.py` and `resume.py` take over what other processes lost. `escrow.py` and `pools.py` admit the
requests of busy tenants within rights that the gateway holds. `guarded_quotas.py` keeps serving while the store of the
budgets is down, and `queue_watch.py` reads the queues' depths. Called by `api/` and `batches/`. The state itself is in
`request/`: read it first.
"""

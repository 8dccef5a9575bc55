"""What crosses a process, and nothing else: the lowest floor, which imports nothing of Fairlane.

    messages.py    jobs, leases, events and controls in msgpack; how a request ends; reading damaged messages
    block_map.py   whose each KV block of a worker is, for operators who watch
    lanes.py       the two lanes, their targets and limits
    settings.py    settings that gateway and worker share; how file, environment and flags are merged
    log_lines.py   the form of log lines
    otlp.py        where spans and metrics go, by OpenTelemetry's own variables
    otlp_metrics.py  what a process' registry of metrics holds, sent over OTLP
    engine_priority.py  one integer for engines of others: lane, promise, deadline
    gc_tuning.py   when a process collects garbage: both kinds do it alike

Gateway, worker, queue, planner and simulator call in. Open `messages.py` first. A field that is added needs a default,
so that processes of two releases understand each other in a rolling update.
"""

"""Messages, lanes and settings shared by all processes. This package is the lowest layer: it imports no other part of
Fairlane.

    messages.py    jobs, leases, events and controls in msgpack; request outcomes; decoding of damaged messages
    media.py       images and sounds in prompts
    block_map.py   the owner of each KV block of a worker, for operators
    lanes.py       the two lanes, their targets and limits
    settings.py    settings shared by gateway and worker; how file, environment and flags are merged
    settings_help.py  command-line help generated from the settings classes
    grammar_limits.py  limits on the cost of a job's grammar
    engine_priority.py  lane, guarantee and deadline as one integer, for external engines

Gateway, worker, queue, planner and simulator import it. Start with `messages.py`. A new field needs a default, so
that two releases understand each other during a rolling update."""

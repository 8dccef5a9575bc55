"""The limiters of others that take part, by the names of their loads. Standard library alone."""

MOVING = "limits, moving window"
COUNTER = "limits, sliding counter"
SLIDING = "throttled-py, sliding window"
GCRA = "throttled-py, GCRA"

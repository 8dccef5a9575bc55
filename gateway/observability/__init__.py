"""What a gateway tells of itself: metrics (also of the processes beside it), traces, one log line for each request.

    metrics.py          every metric and span name; which requests are traced
    collectors.py       counters and histograms that cost a request next to nothing
    fleet_gauges.py     queues, workers and targets, read when somebody scrapes
    process_metrics.py  several processes behind a port as one exposition
    tracing.py          the spans
    context.py          trace and request id of the task
    logging.py          the lines

No prompt, no key and no content stands in any of the three.
"""

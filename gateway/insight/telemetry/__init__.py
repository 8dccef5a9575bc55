"""Observability of a gateway: metrics of all processes behind its port, traces, and one log line for each request.

    metrics.py          every metric and span name; which requests are traced
    collectors.py       counters and histograms that cost a request next to nothing
    fleet_gauges.py     queues, workers and targets, computed at each scrape
    process_metrics.py  merges the metrics of several processes behind a port
    tracing.py          spans
    context.py          trace and request id of the current task
    logging.py          log lines

Metrics, traces and logs contain no prompt, key or other content."""

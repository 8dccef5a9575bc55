"""Metrics, traces and log lines of a gateway.

    metrics.py          every metric; which requests are traced
    collectors.py       cheap counters and histograms
    fleet_gauges.py     queues, workers and targets, computed at each scrape
    process_metrics.py  merges the metrics of several processes behind a port
    tracing.py          spans
    context.py          trace and request id of the current task
    logging.py          log lines

Metrics, traces and logs contain no prompt, key or other content."""

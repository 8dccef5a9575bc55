"""What every process shares, whatever it does: log lines, OpenTelemetry exports, garbage collection, child processes.

    log_lines.py        the form of log lines, as text or JSON
    otlp.py             where spans and metrics are exported, from OpenTelemetry's own variables
    otlp_metrics.py     a Prometheus registry, exported over OTLP
    views.py            JSON views of objects, filled by the names of their fields
    seal.py             encryption of stored contents
    gc_tuning.py        when a process collects garbage
    child_processes.py  children that end with their parent

The lowest layer: imports nothing of Fairlane.
"""

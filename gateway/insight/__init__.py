"""Records, statistics, traces and telemetry of requests and the fleet.

    request_records/  one record per request: its outcome, its time account and the reasons; searched by operators
    fleet_metrics/    counters of all gateways, summed in the store, with their history
    request_traces/   anonymous traces of requests, and simulations of them
    telemetry/        Prometheus metrics, spans and log lines of this process

Reads a request's state (`request`) and never changes it. Never imports `pipeline`.
"""

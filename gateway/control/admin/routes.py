"""Every operation of the admin API. Each is declared where its handler is."""

from fairlane.gateway.control.admin import (
    batches,
    explain,
    fleet,
    keys,
    prices,
    requests,
    tenants,
    tokens,
    traces,
    usage,
)

OPERATIONS = tuple(
    operation
    for module in (tenants, keys, explain, usage, prices, fleet, batches, requests, traces, tokens)
    for operation in module.operations
)

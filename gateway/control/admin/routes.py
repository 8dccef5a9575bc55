"""Every operation of the admin API. Each is declared where its handler is."""

from fairlane.gateway.control.admin import explain, fleet, keys, prices, search, tenants, tokens, traces, usage

OPERATIONS = tuple(
    operation
    for module in (tenants, keys, explain, usage, prices, fleet, search, traces, tokens)
    for operation in module.operations
)

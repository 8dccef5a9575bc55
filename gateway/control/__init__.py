"""The control plane: what operators call and see, and the gateway's periodic upkeep.

    admin/         the admin API
    operators/     operators, their tokens, roles and single sign-on
    console/       the web console
    openapi/       the OpenAPI document and its page
    ledger/        exports of the ledger
    erasure/       erasure of a deleted tenant's data
    elections.py   which gateway does the upkeep of each store

Slow and rare compared with the tenants' endpoints, which never import it.
"""

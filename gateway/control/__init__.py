"""The control plane: the operators' API and console, and the gateway's periodic upkeep.

    admin/         the admin API
    operators/     operators, their tokens, roles and single sign-on
    console/       the web console
    openapi/       the OpenAPI document and its page
    ledger/        export of the ledger
    erasure/       erasure of a deleted tenant's data
    elections.py      elects the gateway that does the upkeep of each store
    static_files.py   files that browsers load

These calls are slow and rare. The tenants' endpoints never import it.
"""

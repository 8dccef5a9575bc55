"""The `fairlane` command.

    main.py             the entry point: finds the subcommand, imports only what that one needs
    serve.py            `serve`: embedded store, one gateway and one worker on one machine
    embedded_store.py   Valkey as a child process, in a private directory
    client.py           the way to a gateway's admin API, tables, files; shared by the four below
    tenants.py          `tenants`, `tenants apply`
    keys.py             `keys`, `quotas`
    reports.py          `usage`, `workers`
    simulate.py         `simulate`: the real scheduler in virtual time over a trace
    simulated_run.py    one simulated installation
    simulate_report.py  its tables, JSON and pictures

Open `main.py` first. It may import every other package; none imports it, but for benchmarks and tests, which start an
`EmbeddedStore`.
"""

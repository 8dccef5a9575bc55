"""The `fairlane` command.

    main.py             the entry point: finds the subcommand, imports only what that one needs
    serve.py            `serve`: embedded store, one gateway and one worker on one machine
    embedded_store.py   Valkey as a child process, in a private directory
    extras.py           which packages an extra brings, and whether they are there
    printer.py          what every command shows things with: tables, JSON, YAML
    client.py           the way to a gateway's admin API, files; shared by those below
    tenants.py          `tenants`, `tenants apply`
    keys.py             `keys`, `quotas`
    imports.py          `import litellm`
    litellm_tables.py   what is there: its database or an export
    litellm_plan.py     what becomes of it, and what cannot be carried over
    reports.py          `usage`, `workers`, `lanes`
    audit.py            `audit`
    requests.py         `requests`
    config.py           `config show`, `config check`
    chat.py             `chat`: a conversation with a model, as a tenant
    top/                `top`: lanes, tenants, workers and KV blocks as they change
    bench/              `bench`: load on a running gateway, two runs compared
    simulation/         `simulate`, `advise` and `record`: request traces, played, advised upon and recorded
    doctor/             `doctor`: is this machine ready, and what to do

Open `main.py` first. It may import every other package; none imports it, but for benchmarks and tests, which start an
`EmbeddedStore`.
"""

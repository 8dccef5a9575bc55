"""The `fairlane` command.

    main.py             the entry point: finds the subcommand and imports only what it needs
    serve.py            `serve`: embedded store, one gateway and one worker on one machine
    processes.py        `gateway`, `worker`: options from the settings, passed on to the process
    embedded_store.py   Valkey as a child process, in a private directory
    options.py          options of a command from a table
    printer.py          output of all commands: tables, JSON, YAML
    client.py           the client of the admin API, argument parsing, files; shared by the commands below
    tenants.py          `tenants`, `tenants apply`
    keys.py             `keys`, `quotas`, `tokens`
    imports.py          `import litellm`
    litellm_tables.py   LiteLLM's tables, from its database or an export
    litellm_plan.py     what to create from them, and what cannot be imported
    reports.py          `usage`, `workers`, `lanes`
    prices.py           `prices`
    audit.py            `audit`
    requests.py         `requests`
    config.py           `config show`, `config check`
    chat.py             `chat`: a conversation with a model, as a tenant
    top/                `top`: live view of lanes, tenants, workers and KV blocks
    bench/              `bench`: load a running gateway; compare two runs
    simulation/         `simulate`, `advise` and `record`: simulate, size from, and record request traces
    recovery/           `backup`, `restore`, `migrate`
    doctor/             `doctor`: checks that this machine is ready to serve

Start with `main.py`. It may import every other package; none imports it, except benchmarks and tests, which start an
`EmbeddedStore`."""

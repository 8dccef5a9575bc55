"""Redis keys of request records: this is the only place where their names are built.

All keys share one hash tag, so that one script can use them all, also on a Cluster:

    fl:records:{requests}:      prefix, given to every script, which appends:
        docs            hash    id → length of its other names, `:`, these names with a NUL after each, and the record
                                (msgpack of a RequestRecord) of an ended request. `@<account>` precedes the names,
                                unless a gateway of an earlier release wrote them
        names           hash    other name → id, as long as its document exists. Names: `T/<account>/<request id>`,
                                `T/<account>/<answer's id>`, `R/<request id>`, `R/<answer's id>`; the newest wins
        of:<account>    zset    ids of its documents, by the end of the request: read by an erasure
        ends            zset    ids by the end of the request, epoch ms: the ring
        plain           zset    the same, of records that are not special, which are evicted first
        gateways        zset    gateways with running requests, by their last report, ms by the store's clock
        live:<G>        hash    of one gateway: id → record, and other name → id, of running requests; expires 15
        minutes
                                after the gateway's last report
"""

# The prefix of all keys, and the one key that scripts are given.
PREFIX = "fl:records:{requests}:"


def names_of(account: str, *others: str) -> list[str]:
    """Return the additional names of a record, for its tenant and for operators. Empty `others` are skipped."""
    return [name for other in others if other for name in (of_tenant(account, other), of_anybody(other))]


def of_tenant(account: str, other: str) -> str:
    """Return a name that only the account's tenant can look up; an account contains no slash, so it cannot be
    another's."""
    return f"T/{account}/{other}"


def of_anybody(other: str) -> str:
    """Return a name that operators can look up."""
    return f"R/{other}"

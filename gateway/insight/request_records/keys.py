"""Redis keys of requests' records: the legend, and the only place where names are built.

All stand under one hash tag, so that one script sees them whole, on a Cluster too:

    fl:records:{requests}:      prefix, given to every script, which appends:
        docs            hash    id → length of its other names, `:`, these names with a NUL behind each, and the record
                                (msgpack of a RequestRecord) of a request that has ended. `@<account>` stands before
                                the names, unless a gateway of an earlier release wrote it
        names           hash    other name → id, as long as its document stands. Names: `T/<account>/<request id>`,
                                `T/<account>/<answer's id>`, `R/<request id>`, `R/<answer's id>`; each means the newest
        of:<account>    zset    ids of its documents, by when the request ended: what an erasure reads
        ends            zset    ids by when the request ended, epoch ms: the ring
        plain           zset    the same, of those without anything special about them, which make room first
        gateways        zset    gateways that have requests which run, by when that was last said, ms of the store
        live:<G>        hash    of one gateway: id → record, and other name → id, of requests that run; gone 15 minutes
                                after the gateway last said so
"""

PREFIX = "fl:records:{requests}:"
"""What every key begins with, and the one key that scripts are given."""


def names_of(account: str, *others: str) -> list[str]:
    """Under which a record is found beside its id: for its tenant, and for operators. `others`: empty ones are none."""
    return [name for other in others if other for name in (of_tenant(account, other), of_anybody(other))]


def owner_of(account: str) -> str:
    """What stands before the names of a document: the account that it is listed under."""
    return f"@{account}"


def listed_of(account: str) -> str:
    """Where the documents of an account are listed."""
    return f"{PREFIX}of:{account}"


def of_tenant(account: str, other: str) -> str:
    """A name for the tenant of an account alone. Neither part can make it another's: an account has no slash."""
    return f"T/{account}/{other}"


def of_anybody(other: str) -> str:
    """A name for operators."""
    return f"R/{other}"

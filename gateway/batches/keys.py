"""Redis keys of files and batches: the legend, and the only place where names are built.

All of one root organisation stands under one hash tag, its budgets' own, so that one script sees it whole. T is a
tenant's account (quotas/keyspace.py):

    fl:batches:{R}:             prefix of the root R, given to every script, which appends:
        file:<F>        hash    tenant, bytes, doc (JSON of a StoredFile; none while it is still coming)
        files:<T>       zset    the tenant's files, by when they came, ms
        bytes:<T>       string  bytes of all of them
        batch:<B>       hash    tenant, key, doc (JSON of a Batch), epoch (how often it was taken), owner, progress
                                (msgpack of a Progress), cancelling (since when, ms)
        batches:<T>     zset    the tenant's batches, by when they were made, ms
        open            zset    batches that have not ended, by when their owner's lease ends, ms; 0: nobody's
        take:<O>        string  owner's last take: name of the call, batch and epoch; expires after a lease
        enqueued:<L>    hash    batch → tokens of its lines that have not ended; L: `tenant:<T>` or `key:<K>`
        expiring        zset    files and ended batches, by when they are forgotten, ms

Outside the roots, each one key of its own:

    fl:batches:roots    zset    roots that have open batches, by when that was last said, ms
    fl:files:roots      zset    roots that have files or batches which expire, by the same
"""

OPEN_ROOTS = "fl:batches:roots"
FILE_ROOTS = "fl:files:roots"


def of_root(root: str) -> str:
    """Prefix of all keys of a root organisation."""
    return f"fl:batches:{{{root}}}:"

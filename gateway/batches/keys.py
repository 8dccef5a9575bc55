"""Redis keys of files and batches. Those of a root organisation share its hash tag; T is a tenant's account.

fl:batches:{R}:             prefix of the root R, given to every script, which appends:
    file:<F>        hash    tenant, bytes, doc (JSON of a StoredFile; absent during the upload)
    files:<T>       zset    the tenant's files, by upload time, ms
    bytes:<T>       string  total bytes of the tenant's files
    batch:<B>       hash    tenant, key, doc (JSON of a Batch), epoch (how often it was taken), owner, progress
                            (msgpack of a Progress), cancelling (since when, ms)
    batches:<T>     zset    the tenant's batches, by creation time, ms
    open            zset    open batches, by the end of the owner's lease, ms; in the past: free to take
    take:<O>        string  owner's last take: name of the call, batch and epoch; expires after a lease
    enqueued:<L>    hash    batch → tokens of its unfinished lines; L: `tenant:<T>` or `key:<K>`
    expiring        zset    files and ended batches, by expiry, ms

fl:batches:roots    zset    roots that have open batches, by the time of the last entry, ms
fl:files:roots      zset    roots that have files or batches that expire, by the same
"""

from pathlib import Path

from fairlane.store.scripts import Scripts

SCRIPTS = Scripts(Path(__file__).parent / "lua")
OPEN_ROOTS = "fl:batches:roots"
FILE_ROOTS = "fl:files:roots"


def of_root(root: str) -> str:
    """Return the prefix of all keys of a root organisation."""
    return f"fl:batches:{{{root}}}:"

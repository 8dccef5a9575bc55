"""Kill an embedded store without the loss of acknowledged writes."""

import redis

from fairlane.cli.embedded_store import EmbeddedStore


def crash(store: EmbeddedStore) -> None:
    """Kill the store once all acknowledged writes are in its append-only file.

    With `appendfsync everysec` the server postpones its writes to the file, for up to two seconds, while an fsync runs
    on a busy disk; a kill would lose them.
    """
    with redis.from_url(store.url) as client:
        client.config_set("appendfsync", "always")
    store.process.kill()
    store.process.wait()

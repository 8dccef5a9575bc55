"""Kill an embedded store without the loss of acknowledged writes."""

import redis

from fairlane.cli.embedded_store import EmbeddedStore


def write_all(url: str) -> None:
    """Return once all acknowledged writes of a store are in its append-only file, and later ones before their reply.

    With `appendfsync everysec` the server postpones its writes to the file, for up to two seconds, while an fsync runs
    on a busy disk; a kill would lose them.
    """
    with redis.from_url(url) as client:
        client.config_set("appendfsync", "always")


def crash(store: EmbeddedStore) -> None:
    write_all(store.url)
    store.process.kill()
    store.process.wait()

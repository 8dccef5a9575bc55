"""An embedded store of a benchmark's own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlane.cli.embedded_store import EmbeddedStore


@contextmanager
def own_store() -> Iterator[str]:
    """Start a store in a directory of its own, and yield its URL; both are gone when the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        store = EmbeddedStore(Path(directory))
        store.start()
        try:
            yield store.url
        finally:
            store.stop()

"""Which keys are saved. Every family of keys is named here: in SAVED, in UNSAVED_KINDS, or in TRANSIENT."""

import re

# Keys of operators are in the main store, all others in that of the budgets.
OPERATORS = re.compile(rb"fl:(admin-key$|\{operators\}:)")
SAVED = re.compile(
    rb"fl:(?:quota:\{|batches:|files:roots$|apikey:|imported:|claims:|audited:|exported:|"
    rb"(?:hashing|pseudonyms|tenants|erasing|roots|reaper|export(?::audit)?|audit)$)"
)
# Keys that a store without tenants never has. Gateways that outlive their store write others of the saved ones.
IN_USE = re.compile(
    rb"fl:(?:(?:tenants|audit|admin-key)$|apikey:|imported:|\{operators\}:|"
    rb"quota:\{[^}]*\}:(?:tenant|key|ledger|usage|prices)\b|batches:\{[^}]*\}:(?:file|batch):)"
)
# Queues, workers, metrics, records of requests, sessions, elections and checks: gateways and workers make them again.
TRANSIENT = re.compile(
    rb"fl:(?:\{(?!operators\})|records:|sessions?:|sign-ins?:|check:|trial|redact|"
    rb"(?:schema|migrated|eraser|gateways|rollup|exporter(?::audit)?)$)"
)
# Keys of a root organisation: its hash tag, and their kind.
OF_ROOT = re.compile(rb"fl:(?:quota|batches):\{([^}]*)\}:([a-z]+)")
# Replies to calls that were resent.
UNSAVED_KINDS = frozenset({b"reply", b"take"})
# Kinds that are read through the sorted set that lists them, so that no unlisted one is saved.
LISTED_KINDS = frozenset({b"reservation", b"escrow", b"file", b"batch"})
# Large keys, read after the others of their root. A ledger is then cut to what it was.
LARGE_KINDS = frozenset({b"ledger", b"response", b"idem"})
# Kinds with a key for each request or response. A budget is exact without one that appears during the backup.
FLEETING_KINDS = frozenset({b"idem", b"paid", b"runs", b"response"})
# Lists that are deleted when they are empty, of a root and of each level of budgets (after `card:`).
_LISTS = {b"quota": (b"leases", b"escrows", b"audit"), b"batches": (b"open", b"expiring")}
_LISTS_OF_LEVELS = {b"quota": (b"figures", b"minute", b"paused"), b"batches": (b"enqueued",)}


# What a restore writes after all other keys, in this order, so that a gateway that still runs finds each root whole: it
# settles a request once it finds its reservation, and serves a tenant and a key once it finds their entries.
_LAST = ({b"reservation", b"leases", b"escrow", b"escrows"}, {b"card"})
TURNS = len(_LAST) + 2


def root_of(key: bytes) -> bytes | None:
    """Return the root organisation of a key; None for keys that all roots share."""
    found = OF_ROOT.match(key)
    return found[1] if found else None


def kind_of(key: bytes) -> bytes:
    """Return the kind of a root's key; empty for others."""
    found = OF_ROOT.match(key)
    return found[2] if found else b""


def is_saved(key: bytes) -> bool:
    """Return whether a key of the budgets' store is saved."""
    return SAVED.match(key) is not None and kind_of(key) not in UNSAVED_KINDS


def turn_of(key: bytes) -> int:
    """Return in which turn a restore writes a key; the first is 0."""
    for turn, kinds in enumerate(_LAST, 1):
        if kind_of(key) in kinds:
            return turn
    return TURNS - 1 if key.startswith(b"fl:apikey:") else 0


def with_lists(root: bytes, keys: set[bytes]) -> set[bytes]:
    """Return a root's keys, and those that may exist at another moment though they were not found at this one."""
    levels = [key.partition(b":card:")[2] for key in keys if kind_of(key) == b"card"]
    found = {b"fl:%s:{%s}:%s" % (of, root, kind) for of, kinds in _LISTS.items() for kind in kinds}
    for of, kinds in _LISTS_OF_LEVELS.items():
        found |= {b"fl:%s:{%s}:%s:%s" % (of, root, kind, level) for kind in kinds for level in levels}
    return keys | found

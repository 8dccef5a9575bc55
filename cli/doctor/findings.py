"""The result of a check of `fairlane doctor`."""

from functools import partial
from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    # `warn`: it works now, but may fail or be slow later.
    state: Literal["ok", "warn", "fail"]
    check: str
    # What was found, in a few words; no secret.
    found: str
    advice: str = ""


ok, warn, fail = partial(Finding, "ok"), partial(Finding, "warn"), partial(Finding, "fail")

"""The fields of a tenant that operators set, each with what makes it valid."""

from collections.abc import Callable
from zoneinfo import ZoneInfoNotFoundError

from quotas import fields
from quotas.fields import FieldError
from quotas.limits import LIMIT_NAMES, Limits, LimitsBy
from quotas.windows import zone_table

LANES = ("latency", "throughput")


def _timezone(value: object) -> str:
    zone = fields.text(value, "timezone")
    try:
        zone_table(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder of zones
        raise FieldError("timezone", "must be an IANA name such as Europe/Berlin") from None
    return zone


PARSERS: dict[str, Callable[[object, Limits], object]] = {
    "name": lambda value, _: fields.text(value, "name"),
    "timezone": lambda value, _: _timezone(value),
    "weight": lambda value, _: fields.number(value, "weight", 0.001, 1000.0),
    "default_lane": lambda value, _: LANES[0] if value is None else fields.one_of(value, "default_lane", LANES),
    "lanes": lambda value, _: fields.texts(value, "lanes", LANES),
    "models": lambda value, _: None if value is None else fields.texts(value, "models"),
    "limits": lambda value, before: Limits() if value is None else before.merged(value),
    "limits_by": lambda value, _: LimitsBy.parse_all(value, LANES),
    "shadow": lambda value, _: fields.texts(value, "shadow", LIMIT_NAMES),
    "reserve": lambda value, _: fields.one_of(value, "reserve", ("progressive", "full")),
    "preemption": lambda value, _: fields.one_of(value, "preemption", ("exact", "fast")),
    "share_group": lambda value, _: "" if value is None else fields.text(value, "share_group"),
}
"""Each given what was stated, and the tenant's limits before. Raise FieldError."""

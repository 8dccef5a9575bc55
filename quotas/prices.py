"""Token prices: the installation's one price list, stored as a whole with a version in Redis.

Prices are in nano-units (billionths) of the currency per token. The most specific row applies: model and lane, model
alone, lane alone, any (`*`). Without a matching row, tokens are free."""

from collections.abc import Mapping
from functools import cached_property

import msgspec

from fairlane.quotas import field_checks, keyspace
from fairlane.quotas.audit import AuditOutbox, Note
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import FREE, Prices
from fairlane.quotas.scripts import Database, Redis
from fairlane.quotas.tenants import LANES, VersionConflict

ANY = "*"
# Nano-units per token, that is 100,000 of the currency per million tokens; more is assumed to be a typing error.
LARGEST_PRICE = 10**8
MOST_ROWS = 1_000
_COLUMNS = ("model", "lane", "input", "cached_input", "output")


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The prices for one model and lane, each of which may be any."""

    model: str = ANY
    lane: str = ANY
    prices: Prices

    def as_dict(self) -> dict[str, str | int]:
        of = self.prices
        figures = {"input": of.input, "cached_input": of.cached, "output": of.output}
        return {"model": self.model, "lane": self.lane, **figures}


class PriceList(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All prices at one version."""

    rows: tuple[PriceRow, ...] = ()
    version: int = 0

    @classmethod
    def parse(cls, rows: object) -> "PriceList":
        if not isinstance(rows, list | tuple) or len(rows) > MOST_ROWS:
            raise FieldError("prices", f"must be a list of at most {MOST_ROWS} rows")
        found = [_row(row, f"prices.{number}") for number, row in enumerate(rows)]
        seen: set[tuple[str, str]] = set()
        for number, row in enumerate(found):
            if (row.model, row.lane) in seen:
                raise FieldError(f"prices.{number}", "repeats the model and lane of an earlier row")
            seen.add((row.model, row.lane))
        return cls(rows=tuple(found))

    def of(self, model: str, lane: str) -> Prices:
        if not self.rows:
            return FREE
        for place in ((model, lane), (model, ANY), (ANY, lane), (ANY, ANY)):
            found = self._table.get(place)
            if found is not None:
                return found
        return FREE

    def as_rows(self) -> list[dict[str, str | int]]:
        return [row.as_dict() for row in self.rows]

    @cached_property
    def _table(self) -> Mapping[tuple[str, str], Prices]:
        return {(row.model, row.lane): row.prices for row in self.rows}


class PriceStore:
    """The stored price list. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)
        self._outbox = AuditOutbox(self._database)

    async def version(self) -> int:
        return int(await self._database.call("HGET", keyspace.PRICES, "version") or 0)

    async def get(self) -> PriceList:
        document, version = await self._database.call("HMGET", keyspace.PRICES, "doc", "version")
        if document is None:
            return PriceList()
        return PriceList(rows=msgspec.json.decode(document, type=tuple[PriceRow, ...]), version=int(version))

    async def put(self, prices: PriceList, *, version: int | None = None, note: Note | None = None) -> PriceList:
        """Replace the list. Raises VersionConflict if `version` is given and outdated."""
        expected, document = "" if version is None else version, msgspec.json.encode(prices.rows).decode()
        reply = await self._outbox.change("prices_put", keyspace.PRICES_ROOT, expected, document, note=note)
        if reply == "conflict":
            raise VersionConflict("prices")
        return PriceList(rows=prices.rows, version=reply)


def _row(row: object, name: str) -> PriceRow:
    stated = field_checks.document(row, name, _COLUMNS)
    model, lane = stated.get("model", ANY), stated.get("lane", ANY)
    figures = {column: _price(stated, column, name) for column in ("input", "output")}
    cached = figures["input"] if stated.get("cached_input") is None else _price(stated, "cached_input", name)
    if cached > figures["input"]:
        raise FieldError(f"{name}.cached_input", "must not exceed `input`")
    model = field_checks.text(model, f"{name}.model")
    if not model:
        raise FieldError(f"{name}.model", "must be the name of a model, or * for any")
    return PriceRow(
        model=model,
        lane=field_checks.one_of(lane, f"{name}.lane", (*LANES, ANY)),
        prices=Prices(input=figures["input"], cached=cached, output=figures["output"]),
    )


def _price(stated: Mapping[str, object], column: str, name: str) -> int:
    price = stated.get(column)
    if type(price) is not int or not 0 <= price <= LARGEST_PRICE:
        raise FieldError(f"{name}.{column}", f"must be a whole number of nano-units per token, 0 to {LARGEST_PRICE}")
    return price

"""What a gateway does with rights that the store has moved to it: the policy, without I/O (transfers.py has the words).

1. A pair of gateway and tenant (more exactly: key, model and lane) with `HOT` requests per second, for at least
   `SUSTAINED_S`, gets a pool.
2. A request within the pool's rights is admitted, extended and settled here, without a call.
3. Every `EXCHANGE_EVERY_S` the pool's rights are exchanged: the store learns what was done with the old ones, and
   grants new ones for about a second. From then on the store has every open request as a reservation like any other.
4. A request that the rights do not cover goes to the store, as all requests of other pairs do.
5. A pool without requests for `IDLE_S` returns its rights; rights are never spent later than `VALID_MS` after they were
   asked for.
6. A pool that the store no longer has as this gateway left it is over: its requests are reported one by one."""

import math
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from fairlane.quotas import limits, sizing
from fairlane.quotas.escrow.transfers import (
    FEWEST,
    MOST_REQUESTS,
    VALID_MS,
    Ending,
    Entry,
    Progress,
    Rights,
    Transfer,
    Transferred,
    reservation_id,
)
from fairlane.quotas.limits import RULES, Demand, Level, Limits, LimitStatus, WindowName
from fairlane.quotas.store import Ask, Charge, Extension, Need, Reservation, Settled
from fairlane.quotas.windows import FixedWindow, Totals
from fairlane.store.bounds import PER_CALL

# Requests per second, over WINDOW_S, from which a pair has a pool, and below which it returns its rights.
HOT, COOL = 5.0, 2.5
WINDOW_S, SUSTAINED_S, BUCKET_S = 2.0, 1.0, 0.25
EXCHANGE_EVERY_S, IDLE_S = 0.5, 0.5
# Rights to ask for, in seconds of the pair's rate.
AHEAD_S = 1.0
_RULES = {rule.name: rule for rule in RULES}
_POOL_DIGITS = 16


class Pair(msgspec.Struct, frozen=True):
    """Requests that one pool may serve."""

    root: str
    account: str
    key_id: str
    model: str
    lane: str


def is_poolable(ask: Ask) -> bool:
    """Return whether a request may use a pool: one prompt, interactive, without an idempotency key."""
    return len(ask.prompts) == 1 and ask.once is None and ask.resumption is None and not ask.is_batch


@dataclass(slots=True)
class Rate:
    """Sums of what a pair's requests reserved at first, over the last WINDOW_S. Every request calls `add`."""

    # Number, requests, input tokens and output tokens of each bucket, oldest first.
    _buckets: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    # Sums of the buckets. They include expired ones, until `total` drops these.
    requests: int = 0
    _input: int = 0
    _output: int = 0
    last_s: float = -math.inf

    def add(self, now_s: float, requests: int, input_tokens: int, output_tokens: int) -> None:
        self.requests += requests
        self._input += input_tokens
        self._output += output_tokens
        if requests:
            self.last_s = now_s
        number, buckets = int(now_s / BUCKET_S), self._buckets
        if buckets and buckets[-1][0] == number:
            _, requests_before, input_before, output_before = buckets.pop()
            requests += requests_before
            input_tokens += input_before
            output_tokens += output_before
        buckets.append((number, requests, input_tokens, output_tokens))

    def total(self, now_s: float) -> Totals:
        oldest = int((now_s - WINDOW_S) / BUCKET_S)
        while self._buckets and self._buckets[0][0] < oldest:
            _, requests, input_tokens, output_tokens = self._buckets.popleft()
            self.requests -= requests
            self._input -= input_tokens
            self._output -= output_tokens
        return Totals(self.requests, self._input, self._output)

    def is_hot(self, now_s: float) -> bool:
        if self.requests < HOT * WINDOW_S or self.total(now_s).requests < HOT * WINDOW_S:
            return False
        return self._buckets[0][0] <= int((now_s - SUSTAINED_S) / BUCKET_S)

    def wanted(self, now_s: float) -> Rights:
        total = self.total(now_s)
        if now_s - self.last_s > IDLE_S or total.requests < COOL * WINDOW_S:
            return Rights()
        requests = min(MOST_REQUESTS, max(FEWEST, math.ceil(total.requests * AHEAD_S / WINDOW_S)))
        part = requests / total.requests
        return Rights(requests, math.ceil(total.input * part), math.ceil(total.output * part))


@dataclass(eq=False, slots=True)
class Flight:
    """An open request that a pool admitted. Figures are tokens since its start."""

    ask: Ask
    input: int
    output: int
    choice: int
    ceiling: int
    charged_input: int = 0
    charged_output: int = 0
    # The store has it as a reservation, as of the last exchange.
    is_recorded: bool = False
    # It has used rights since the last exchange.
    uses_rights: bool = True
    charge: Charge | None = None

    @property
    def entry(self) -> Entry:
        if self.charge is not None:
            return Ending(ask=self.ask, charge=self.charge)
        return Progress(
            ask=self.ask,
            input=self.input,
            output=self.output,
            charged_input=self.charged_input,
            charged_output=self.charged_output,
            choice=self.choice,
            ceiling=self.ceiling,
        )


class Pool:
    """The rights of one pair, and the requests made within them. Times are on the gateway's monotonic clock."""

    def __init__(self, pair: Pair, rate: Rate, *, name: str | None = None) -> None:
        self.pair, self.rate = pair, rate
        self.name = name or secrets.token_hex(_POOL_DIGITS // 2)
        self.is_over = False
        self._flights: dict[str, Flight] = {}
        self._rights = Totals()
        self._valid_until_s = -math.inf
        self._call = 0
        # Numbers of requests: the first of the current rights, the end of these, and the next one.
        self._first = self._end = self._next = 0
        self._sent: tuple[Transfer, float] | None = None
        self._statuses: Sequence[LimitStatus] = ()
        # What changed since the statuses were read: tokens held, and usage charged.
        self._held, self._used = Totals(), Totals()
        self._level = _level(())

    @property
    def is_asking(self) -> bool:
        return self._sent is not None

    @property
    def needs_exchange(self) -> bool:
        return self._next >= self._end or sum(map(_is_due, self._flights.values())) >= PER_CALL

    def knows(self, name: str) -> bool:
        return name in self._flights

    def is_due(self, name: str) -> bool:
        return name in self._flights and _is_due(self._flights[name])

    def is_recorded(self, name: str) -> bool:
        return self._flights[name].is_recorded

    def next_name(self, now_s: float) -> str | None:
        """Return a name for a request that may be made within the rights; None if they are used up."""
        if self._next >= self._end or not self._is_valid(now_s):
            return None
        self._next += 1
        return reservation_id(self.name, self._next - 1)

    def reserve(self, ask: Ask, now_s: float) -> Reservation | None:
        """Admit a request within the rights, or return None: the store decides."""
        if ask.reservation_id in self._flights:
            return self._reservation(self._flights[ask.reservation_id])
        if not (is_poolable(ask) and self._is_valid(now_s) and self._is_numbered(ask.reservation_id)):
            return None
        most = ask.max_output_tokens
        demand = Demand(ask.prompt_tokens, most, most, ask.choices, stated=ask.explicit_max, prices=ask.prices)
        demand = sizing.sized([self._level], demand, ask.quantum)
        if limits.refusals([self._level], demand, 0) or not self._take(1, demand.input, demand.output):
            return None
        self._used.requests += 1
        flight = Flight(ask, demand.input, demand.output, demand.choice, demand.ceiling)
        self._flights[ask.reservation_id] = flight
        self.rate.add(now_s, 1, demand.input, demand.output)
        return self._reservation(flight)

    def extend(self, name: str, need: Need, now_s: float) -> Extension | None:
        """Charge a request's progress, and grant it more within the rights; None: the store decides."""
        flight = self._flights[name]
        if not self._is_valid(now_s):
            return None
        whole = sizing.portion([self._level], need.quantum, need.unit) * need.unit
        most = sizing.largest([self._level], need.most, choices=need.unit, ended=need.ended)
        is_repeat = flight.output > need.known
        wanted = 0 if is_repeat else min(need.known + whole, most) - flight.output
        wanted -= wanted % need.unit
        if wanted > 0 and not (self._has_room(flight) and self._take(0, 0, wanted)):
            return None
        is_at_ceiling = not is_repeat and most < need.most and most - flight.output < need.unit
        self._charge(flight, need.prompt_tokens, need.published)
        if wanted > 0:
            flight.output += wanted
            flight.uses_rights = True
            self.rate.add(now_s, 0, 0, wanted)
        limited_by = "max_output_tokens" if is_at_ceiling else ""
        return Extension(granted_tokens=flight.output, limited_by=limited_by, spent=is_at_ceiling)

    def extended(self, name: str, need: Need, extension: Extension) -> None:
        flight = self._flights.get(name)
        if flight is None or flight.charge is not None:
            return
        self._charge(flight, need.prompt_tokens, need.published)
        added = max(0, extension.granted_tokens - flight.output)
        flight.output += added
        self._held.output += added

    def settle(self, name: str, charge: Charge) -> Settled:
        flight = self._flights[name]
        if flight.charge is not None:
            return Settled(first=False)
        input_left, output_left = flight.input - flight.charged_input, flight.output - flight.charged_output
        self._held.add(Totals(0, -input_left, -output_left))
        if charge.is_refund and not flight.charged_input + flight.charged_output:
            self._used.requests -= 1
        else:
            input_tokens = max(charge.prompt_tokens - flight.charged_input, 0)
            self._used.add(Totals(0, input_tokens, max(charge.output_tokens - flight.charged_output, 0)))
        flight.charge = charge
        return Settled(first=True, statuses=self.statuses())

    def order(self, now_s: float, gateways: int, *, closes: bool = False) -> Transfer:
        """Return the next exchange, or the one that was not answered yet, to be sent again."""
        if self._sent is not None:
            return self._sent[0]
        due = [flight for flight in self._flights.values() if _is_due(flight)]
        due.sort(key=lambda flight: not flight.uses_rights)  # those whose rights go back come first: at most PER_CALL
        pair = self.pair
        wanted = Rights() if closes else self.rate.wanted(now_s)
        order = Transfer(
            pool=self.name,
            root=pair.root,
            account=pair.account,
            key_id=pair.key_id,
            model=pair.model,
            lane=pair.lane,
            call=self._call + 1,
            first=self._next,
            wanted=wanted,
            gateways=gateways,
            entries=tuple(flight.entry for flight in due[:PER_CALL]),
        )
        self._sent = order, now_s
        return order

    def not_sent(self) -> None:
        self._sent = None

    def answered(self, answer: Transferred) -> None:
        if self._sent is None:
            return
        order, sent_s = self._sent
        if answer.call >= order.call:
            self._reported(order)
        rights = answer.rights
        self._sent = None
        self._call, self._first, self._next = order.call, order.first, order.first
        if rights is None or rights.requests == 0:
            self.is_over, self._rights, self._end = True, Totals(), self._next
        else:
            self._rights = Totals(rights.requests, rights.input, rights.output)
            self._end = self._first + rights.requests
        self._valid_until_s = sent_s + VALID_MS / 1e3
        self._statuses = answer.statuses
        self._held = Totals(0, -self._rights.input, -self._rights.output)
        self._used = Totals(-self._rights.requests)
        self._level = _level(answer.statuses)

    def left(self) -> list[Flight]:
        return [flight for flight in self._flights.values() if _is_due(flight)]

    def statuses(self) -> tuple[LimitStatus, ...]:
        """Return every limit with what was held and charged here since the last exchange, without unspent rights."""
        return self.shifted(self._statuses)

    def shifted(self, statuses: Sequence[LimitStatus]) -> tuple[LimitStatus, ...]:
        """Return the store's figures with what was held and charged here since the last exchange, and unspent rights
        taken off."""
        return tuple([_shifted(status, self._used, self._held) for status in statuses])

    def _reported(self, order: Transfer) -> None:
        for entry in order.entries:
            name = entry.ask.reservation_id
            if isinstance(entry, Ending):
                del self._flights[name]
            else:
                self._flights[name].is_recorded, self._flights[name].uses_rights = True, False

    def _is_valid(self, now_s: float) -> bool:
        return not self.is_over and not self.is_asking and now_s < self._valid_until_s

    def _is_numbered(self, name: str) -> bool:
        if len(name) != _POOL_DIGITS + 8 or not name.startswith(self.name):
            return False
        return self._first <= int(name[_POOL_DIGITS:], 16) < self._next

    def _has_room(self, flight: Flight) -> bool:
        return flight.uses_rights or sum(each.uses_rights for each in self._flights.values()) < PER_CALL

    def _take(self, requests: int, input_tokens: int, output_tokens: int) -> bool:
        left = self._rights
        if left.requests < requests or left.input < input_tokens or left.output < output_tokens:
            return False
        if requests and sum(each.uses_rights for each in self._flights.values()) >= PER_CALL:
            return False
        left.add(Totals(-requests, -input_tokens, -output_tokens))
        self._held.add(Totals(0, input_tokens, output_tokens))
        return True

    def _charge(self, flight: Flight, prompt_tokens: int, published: int) -> None:
        input_tokens = max(0, min(flight.input, prompt_tokens) - flight.charged_input)
        output_tokens = max(0, min(flight.output, published) - flight.charged_output)
        flight.charged_input += input_tokens
        flight.charged_output += output_tokens
        self._held.add(Totals(0, -input_tokens, -output_tokens))
        self._used.add(Totals(0, input_tokens, output_tokens))

    def _reservation(self, flight: Flight) -> Reservation:
        return Reservation(
            granted_tokens=flight.choice, most_tokens=max(flight.ceiling, flight.choice), statuses=self.statuses()
        )


def _is_due(flight: Flight) -> bool:
    return flight.uses_rights or flight.charge is not None


_WINDOWS: dict[WindowName, FixedWindow] = {
    name: FixedWindow(Totals(), None) for name in ("minute", "day", "month", "live")
}


def _level(statuses: Sequence[LimitStatus]) -> Level:
    lowest: dict[str, int] = {}
    for status in statuses:
        lowest[status.name] = min(status.limit, lowest.get(status.name, status.limit))
    return Level(scope="tenant", limits=Limits(**lowest), shadow=frozenset(), windows=_WINDOWS, held=Totals())


def _shifted(status: LimitStatus, used: Totals, held: Totals) -> LimitStatus:
    rule = _RULES[status.name]
    if rule.window == "request":
        return status
    more_used, more_held = used.count(rule.counts), held.count(rule.counts)
    if not more_used and not more_held:
        return status
    all_used, all_held = max(0, status.used + more_used), max(0, status.reserved + more_held)
    shifted = msgspec.structs.replace(status, used=all_used, reserved=all_held)
    if rule.window != "minute" or all_used or all_held or status.resets_at is None:
        return shifted
    return msgspec.structs.replace(shifted, resets_at=status.resets_at - status.reset_after_s, reset_after_s=0.0)

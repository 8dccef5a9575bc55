"""The policy of a gateway's rights by itself: never more than was granted, never late, each request reported once."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from fairlane.quotas.escrow.pool import EXCHANGE_EVERY_S, HOT, IDLE_S, WINDOW_S, Pair, Pool, Rate
from fairlane.quotas.escrow.transfers import VALID_MS, Ending, Rights, Transfer, Transferred
from fairlane.quotas.store import Ask, Need
from fairlane.quotas.windows import Totals
from tests.support.quotas.house import ask, charge

PAIR = Pair("acme", "acme", "", "smol", "latency")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(1, 30), st.integers(1, 40)),
        st.tuples(st.just("extend"), st.integers(0, 9), st.integers(1, 40)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 40)),
        st.tuples(st.just("exchange"), st.integers(0, 64), st.integers(0, 400)),
        st.tuples(st.just("lost reply"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 1_200), st.just(0)),
    ),
    max_size=60,
)


class Run:
    """A pool, the rights that it was granted last, and what it has done with them since."""

    def __init__(self) -> None:
        self.now_s, self.asked_s = 100.0, 0.0
        self.pool = Pool(PAIR, Rate(), name="0123456789abcdef")
        self.granted, self.spent = Rights(), Totals()
        self.open: list[tuple[Ask, int]] = []
        self.settled: set[str] = set()
        self.reported: list[str] = []
        self.names: set[str] = set()
        self.order: Transfer | None = None

    def reserve(self, prompt: int, output: int) -> None:
        name = self.pool.next_name(self.now_s)
        assert name not in self.names
        asked = ask(name or "not of this pool", prompts=(prompt,), max_output_tokens=output, quantum=16)
        reservation = self.pool.reserve(asked, self.now_s)
        if reservation is None:
            return
        assert name is not None
        assert self.now_s < self.asked_s + VALID_MS / 1e3
        assert self.order is None
        self.names.add(name)
        self.open.append((asked, reservation.granted_tokens))
        self.spent.add(Totals(1, prompt, reservation.granted_tokens))

    def extend(self, number: int, published: int) -> None:
        if number >= len(self.open) or not self.pool.knows(self.open[number][0].reservation_id):
            return
        asked, granted = self.open[number]
        need = Need(published=min(published, granted), prompt_tokens=1, known=granted, most=100, quantum=16)
        extension = self.pool.extend(asked.reservation_id, need, self.now_s)
        if extension is not None:
            self.spent.add(Totals(0, 0, extension.granted_tokens - granted))
            self.open[number] = asked, extension.granted_tokens

    def settle(self, number: int, output: int) -> None:
        if number < len(self.open) and self.pool.knows(self.open[number][0].reservation_id):
            asked, granted = self.open.pop(number)
            assert self.pool.settle(asked.reservation_id, charge(min(output, granted), asked.prompt_tokens)).first
            self.settled.add(asked.reservation_id)

    def exchange(self, requests: int, tokens: int, *, is_lost: bool = False) -> None:
        if self.order is None:
            self.asked_s = self.now_s
        order = self.pool.order(self.now_s, 1)
        assert self.order in (None, order)
        self.order = order
        if is_lost:
            return
        self.order = None
        self.reported += [each.ask.reservation_id for each in order.entries if isinstance(each, Ending)]
        self.granted, self.spent = Rights(requests, tokens, tokens), Totals()
        self.pool.answered(Transferred(rights=self.granted, call=order.call))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
def test_rights_are_never_overspent_and_each_end_is_reported_once(done: list[tuple[str, int, int]]) -> None:
    run = Run()
    for name, first, second in done:
        if name == "wait":
            run.now_s += first / 1e3
        elif name == "lost reply":
            run.exchange(0, 0, is_lost=True)
        else:
            getattr(run, name)(first, second)
        assert run.spent.requests <= run.granted.requests
        assert run.spent.input <= run.granted.input
        assert run.spent.output <= run.granted.output

    for _ in range(3):
        run.exchange(0, 0)

    assert sorted(run.reported) == sorted(run.settled)
    assert not run.pool.left()


def test_a_pair_is_hot_after_a_while_and_wants_nothing_once_it_is_idle() -> None:
    rate = Rate()
    for _ in range(100):
        rate.add(1.0, 1, 10, 20)
    assert not rate.is_hot(1.0)
    for number in range(round(HOT * WINDOW_S) + 1):
        rate.add(10 + number / HOT, 1, 10, 20)
    now_s = 10 + WINDOW_S

    assert rate.is_hot(now_s)
    assert rate.wanted(now_s) == Rights(6, 60, 120)
    assert rate.wanted(now_s + IDLE_S + 0.01) == Rights()
    assert IDLE_S + EXCHANGE_EVERY_S <= VALID_MS / 1e3

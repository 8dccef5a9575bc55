import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlane.scheduler.planner.kv.blocks import BlockPool, IntegrityError
from fairlane.scheduler.planner.kv.prefix_cache import MAX_PER_EVICTION, PrefixCache, Scope

ACME, GLOBEX = ("tenant", "acme"), ("tenant", "globex")


def pool_of(blocks: int = 8, *, share: float = 1.0, pair_ms: float = 0.0) -> BlockPool:
    """Its blocks hold one token; a later one costs more where `pair_ms` says so."""
    cache = PrefixCache(blocks=blocks, block_size=1, share=share, prices_ms=lambda: (1.0, pair_ms))
    return BlockPool(blocks=blocks, block_size=1, host_slots=0, cache=cache)


def chunks(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def leave(pool: BlockPool, text: str, scope: Scope = ACME) -> None:
    """Compute a text, publish it and let go."""
    table: list[int] = []
    pool.adopt(pool.cache.find(scope, table, 0, chunks(text)), table, 0)
    found = len(table)
    pool.allocate(table, len(text) - found)
    assert pool.publish(scope, table, found, chunks(text)[found:]) == len(text)
    pool.release(table)


def kept(pool: BlockPool, text: str, scope: Scope = ACME) -> int:
    """How many of a text's first blocks are there."""
    return len(pool.cache.find(scope, [], 0, chunks(text)))


def test_a_text_is_found_as_far_as_it_is_the_same() -> None:
    pool = pool_of()
    leave(pool, "abcd")

    assert [kept(pool, text) for text in ("abcd", "abcde", "abxd", "b", "")] == [4, 4, 2, 0, 0]


def test_nothing_is_found_in_another_scope() -> None:
    pool = pool_of()
    leave(pool, "abcd")

    assert kept(pool, "abcd", GLOBEX) == 0


def test_what_is_kept_is_free_and_given_last_from_its_end() -> None:
    pool, text = pool_of(16), "abcdefghijkl"
    leave(pool, text)
    assert (pool.free_blocks, pool.cache.idle) == (16, 12)

    table: list[int] = []
    pool.allocate(table, 4)
    assert kept(pool, text) == 12
    pool.allocate(table, 1)
    assert kept(pool, text) == 12 - MAX_PER_EVICTION
    pool.allocate(table, 11)
    assert kept(pool, text) == 0


def test_what_was_used_last_goes_last() -> None:
    pool = pool_of()
    for text in ("abc", "xyz", "abc"):
        leave(pool, text)

    pool.allocate([], 5)

    assert (kept(pool, "abc"), kept(pool, "xyz")) == (3, 0)


def test_what_costs_more_to_compute_stays_longer_but_not_for_ever() -> None:
    pool = pool_of(10, pair_ms=1.0)
    leave(pool, "abcdefgh")

    for text in ("x", "y", "z"):
        leave(pool, text)
    assert kept(pool, "abcdefgh") == 8

    for _ in range(40):
        for text in "pqrst":
            leave(pool, text)
    assert kept(pool, "abcdefgh") < 8


def test_who_keeps_more_than_a_share_gives_first() -> None:
    pool = pool_of(share=0.25)
    leave(pool, "ab", GLOBEX)
    for text in ("cdef", "ghij", "klmn", "opqr"):
        leave(pool, text)

    assert kept(pool, "ab", GLOBEX) == 2


def test_a_table_computed_twice_is_published_once_and_in_its_place_later() -> None:
    pool, first, second = pool_of(), list[int](), list[int]()
    pool.allocate(first, 3)
    pool.allocate(second, 3)
    pool.publish(ACME, first, 0, chunks("abc"))

    assert pool.publish(ACME, second, 0, chunks("abc")) == 0

    pool.release(first)
    assert pool.publish(ACME, second, 0, chunks("abc")) == 3
    assert pool.cache.find(ACME, [], 0, chunks("abc")) == second
    assert (pool.free_blocks, pool.cache.idle) == (5, 0)


def test_a_share_beyond_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="share must be between"):
        PrefixCache(blocks=8, block_size=4, share=1.5)


def test_integrity_notices_a_cached_block_that_was_given_away() -> None:
    pool = pool_of()
    leave(pool, "abc")

    pool.cache.hold(pool.cache.find(ACME, [], 0, chunks("a"))[0])

    with pytest.raises(IntegrityError, match="prefix_cache"):
        pool.check_integrity([], [])


class PoolMachine(RuleBasedStateMachine):
    """Tables of two tenants come, grow, are published and go. `written` is what the memory would hold."""

    @initialize(blocks=st.integers(4, 12), share=st.sampled_from([0.0, 0.3, 1.0]), pair_ms=st.sampled_from([0.0, 1.0]))
    def start(self, blocks: int, share: float, pair_ms: float) -> None:
        self.pool = pool_of(blocks, share=share, pair_ms=pair_ms)
        self.tables: list[tuple[Scope, str, list[int], int]] = []
        """Scope, text, blocks, and how many of them are published."""
        self.written: dict[int, tuple[Scope, str]] = {}

    @rule(scope=st.sampled_from([ACME, GLOBEX]), text=st.text("ab", min_size=1, max_size=5))
    def begin(self, scope: Scope, text: str) -> None:
        table: list[int] = []
        found = self.pool.cache.find(scope, table, 0, chunks(text))
        assert [self.written[block] for block in found] == [(scope, text[: end + 1]) for end in range(len(found))]
        self.pool.adopt(found, table, 0)
        if not self.pool.can_allocate(len(text) - len(found)):
            self.pool.release(table)
            return
        self.pool.allocate(table, len(text) - len(found))
        for place in range(len(found), len(text)):
            self.written[table[place]] = scope, text[: place + 1]
        self.tables.append((scope, text, table, len(found)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.tables) - 1))
        scope, text, table, known = self.tables[number]
        known = self.pool.publish(scope, table, known, chunks(text)[known:])
        self.tables[number] = scope, text, table, known

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def go_on_behind_what_is_published(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.tables) - 1))
        scope, text, table, known = self.tables[number]
        found = self.pool.cache.find(scope, table, known, chunks(text)[known:])
        self.pool.adopt(found, table, known)
        self.tables[number] = scope, text, table, known + len(found)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), length=st.integers(1, 5))
    def fork(self, data: st.DataObject, length: int) -> None:
        scope, text, trunk, known = data.draw(st.sampled_from(self.tables))
        table: list[int] = []
        self.pool.share(trunk, length, table)
        self.tables.append((scope, text[:length], table, min(known, length)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), keep=st.integers(0, 2))
    def release(self, data: st.DataObject, keep: int) -> None:
        number = data.draw(st.integers(0, len(self.tables) - 1))
        scope, text, table, known = self.tables.pop(number)
        self.pool.release(table, keep)
        if table:
            self.tables.append((scope, text[:keep], table, min(known, keep)))

    @invariant()
    def every_block_is_one_of_free_held_or_cached_and_holds_what_its_table_says(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity([table for _, _, table, _ in self.tables], [])
        for scope, text, table, _ in self.tables:
            assert [self.written[block] for block in table] == [(scope, text[: end + 1]) for end in range(len(table))]
        held = {block for _, _, table, _ in self.tables for block in table}
        assert self.pool.free_blocks == self.pool.blocks - len(held)
        for block in held:
            assert self.pool.references(block) == sum(block in table for _, _, table, _ in self.tables)

    @rule(data=st.data())
    def some_tables_free_what_only_they_hold(self, data: st.DataObject) -> None:
        tables = [table for _, _, table, _ in self.tables]
        chosen = data.draw(st.sets(st.integers(0, max(0, len(tables) - 1)))) if tables else set[int]()
        kept = {block for place, table in enumerate(tables) if place not in chosen for block in table}
        given = {block for place in chosen for block in tables[place]}
        assert self.pool.freed_by([tables[place] for place in chosen]) == len(given - kept)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for _, _, table, _ in self.tables:
                self.pool.release(table)
            self.pool.allocate([], self.pool.blocks)  # all of it can be had


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

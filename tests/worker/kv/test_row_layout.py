"""A step's rows in arrays, and the block tables that stay from step to step."""

from collections.abc import Sequence

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.kv.row_layout import BlockTables, RowLayout


def row(name: str, first: int, tokens: Sequence[int], table: tuple[int, ...], *, samples: bool = True) -> Row:
    return Row(SeqId(name, 0), tuple(tokens), first, table, samples, output_index=0)


def test_decodes_are_laid_out_like_the_same_rows_among_others() -> None:
    decodes = [row("a", 5, [7], (3, 1)), row("b", 8, [9], (2, 0, 4))]
    prompt = row("c", 4, [1, 2, 3], (5, 6), samples=False)

    alone, among = RowLayout(decodes, 4, 40), RowLayout([*decodes, prompt], 4, 40)

    assert alone.tokens.tolist() == [[7, 9], [5, 8], [1 * 40 + 1, 4 * 40]]
    assert among.tokens.tolist() == [[7, 9, 1, 2, 3], [5, 8, 4, 5, 6], [41, 160, 240, 241, 242]]
    assert alone.ends.tolist() == among.ends.tolist() == [0, 1]
    assert (alone.longest, among.longest) == (9, 9)
    assert [alone.starts.tolist(), alone.counts.tolist(), alone.firsts.tolist()] == [[0, 1], [1, 1], [5, 8]]
    assert [among.starts.tolist(), among.counts.tolist(), among.firsts.tolist()] == [[0, 1, 2], [1, 1, 3], [5, 8, 4]]


def test_tables_are_found_whoever_comes_goes_and_grows() -> None:
    tables = BlockTables()

    for step in range(60):
        here = range(step // 3, step // 3 + 1 + step % 7)
        rows = [row(str(name), 0, [1], tuple(range(name, name + 1 + step * (name % 3)))) for name in here]
        starts = tables.starts(rows)
        lines = tables.lines(rows, 160)

        assert lines.shape == (len(rows), 160)
        for one, start, line in zip(rows, starts, lines, strict=True):
            length = len(one.block_table)
            assert tables.flat[start : start + length].tolist() == line[:length].tolist() == [*one.block_table]


def test_a_table_that_has_not_changed_stays_where_it_is() -> None:
    tables = BlockTables()
    rows = [row("a", 0, [1], (4, 2)), row("b", 0, [1], (3,))]
    first = tables.starts(rows)

    grown = rows[1]._replace(block_table=(3, 0))

    assert tables.starts([grown, rows[0]]) == first[::-1]
    assert tables.flat[first[1] : first[1] + 2].tolist() == [3, 0]

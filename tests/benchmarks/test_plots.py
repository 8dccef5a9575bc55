"""The proof's pictures: small, the same bytes for the same figures, and written together."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.common.line import C, R, Table
from benchmarks.scheduling.__main__ import main
from benchmarks.scheduling.lines.world import OURS
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import spread

MOST_BYTES = 60_000

plots = pytest.importorskip("benchmarks.scheduling.plots")


class Little:
    """Small versions, one after another."""

    quick = True
    seeds: Sequence[int] = (0,)

    def each(self, what: str, play: Callable[[C], R], cases: Iterable[C]) -> list[R]:
        return [play(case) for case in cases]

    def show(self, table: Table) -> None:
        raise AssertionError("a picture needs no table")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found: list[Path] = plots.draw(Little(), tmp_path_factory.mktemp("plots") / "all" / "of them")
    return found


@pytest.mark.thorough
def test_every_picture_is_written_and_small(pictures: list[Path]) -> None:
    assert [picture.name for picture in pictures] == ["service.svg", "goodput.svg", "latency.svg"]
    for picture in pictures:
        content = picture.read_bytes()
        assert len(content) < MOST_BYTES
        ElementTree.fromstring(content)  # noqa: S314 - our own
        assert OURS.encode() in content


def test_the_same_figures_give_the_same_bytes() -> None:
    values = {OURS: [1.0, 2.0], "vtc": [1.0, 1.5]}

    first, again = plots.goodput(values, (0.5, 4.0)), plots.goodput(values, (0.5, 4.0))

    assert first == again
    assert b"dc:date" not in first


def test_a_lane_that_nobody_used_is_left_empty() -> None:
    few = spread([10.0, 20.0])
    assert few is not None

    drawn = plots.latency({OURS: {LaneName.LATENCY: plots.Latencies(few, few)}})

    assert b"TPOT, throughput lane" in drawn


def test_what_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SystemExit, match="2"):
        main(["--plots", str(tmp_path / "file")])

    assert "file is no directory" in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.scheduling.__main__.find_spec", lambda name: None)

    with pytest.raises(SystemExit, match="2"):
        main(["--plots", str(tmp_path / "plots")])

    assert "fairlane[plots]" in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()

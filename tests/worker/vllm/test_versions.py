"""Which versions of vLLM are supported: both parts, and the table of docs/engines.md."""

import re
from pathlib import Path

import pytest

from fairlane.worker.remote.vllm import KNOWN
from fairlane.worker.vllm import SUPPORTED, UnsupportedVllm, require_supported

ROOT = Path(__file__).parents[3]
VERSIONED = {"LaneScheduler": SUPPORTED, "`--engine vllm`": KNOWN, "images, audio": KNOWN}


def table() -> list[dict[str, str]]:
    """The rows of the table of versions, by heading."""
    section = (ROOT / "docs" / "engines.md").read_text().partition("### Supported versions\n")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "v0.32.1", "0.32.0rc1", "0.32.0+cpu", "0.33.0", "v0.33.1"])
def test_a_supported_minor_version_passes(version: str) -> None:
    require_supported(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "0.320.0", "1.0", "dev", ""])
def test_any_other_is_refused_in_one_sentence(version: str) -> None:
    with pytest.raises(UnsupportedVllm, match=r"^LaneScheduler supports vLLM 0\.32, 0\.33, not .*\.$"):
        require_supported(version)


@pytest.mark.parametrize(("column", "versions"), VERSIONED.items())
def test_the_table_is_what_the_code_accepts(column: str, versions: tuple[str, ...]) -> None:
    assert tuple(row["vLLM"] for row in table() if row[column] == "yes") == versions


def test_every_version_has_a_record_of_its_interface_and_a_word_on_its_tests() -> None:
    records = {path.stem for path in Path(__file__).with_name("interfaces").glob("*.json")}

    assert records == {row["vLLM"] for row in table()}
    assert all(row["tested"] for row in table())


def test_the_charts_vllm_is_in_the_table() -> None:
    [tag] = re.findall(
        r"tag: v(\d+\.\d+)\.\d+ # of a version that docs/engines", (ROOT / "helm/values.yaml").read_text()
    )

    assert tag in {row["vLLM"] for row in table()}

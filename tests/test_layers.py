"""No package of the product has an import cycle among its folders or modules."""

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

ROOT = "fairlane"


def siblings(graph: grimp.ImportGraph) -> dict[str, dict[str, set[str]]]:
    """Return, for each package, which of its children imports which of the others."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            left, right = importer.split("."), imported.split(".")
            depth = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
            if depth:
                found[".".join(left[:depth])][left[depth]].add(right[depth])
    return found


def cycle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_package_has_a_cycle() -> None:
    by_package = siblings(grimp.build_graph(ROOT, cache_dir=None))

    assert len(by_package) > 30
    assert {package: found for package, imports in by_package.items() if (found := cycle(imports))} == {}


@pytest.mark.parametrize(("imports", "found"), [({"a": {"b"}, "b": {"c"}}, 0), ({"a": {"b"}, "b": {"a"}}, 3)])
def test_a_cycle_is_found(imports: dict[str, set[str]], found: int) -> None:
    assert len(cycle(imports)) == found

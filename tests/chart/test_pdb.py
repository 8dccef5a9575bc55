"""`templates/gateway/pdb.yaml` and `templates/worker/pdb.yaml`."""

import pytest

from tests.chart.conftest import Render
from tests.support.chart import Chart, component_of


@pytest.mark.parametrize("component", ["gateway", "worker"])
def test_a_budget_stands_only_where_there_is_more_than_one_replica(render: Render, component: str) -> None:
    alone = render(values={component: {"replicas": 1}})
    several = render(values={component: {"replicas": 3}})

    assert component not in _components(alone)
    assert several.one("PodDisruptionBudget", component)["spec"]["maxUnavailable"] == 1


def _components(chart: Chart) -> set[str]:
    return {component_of(budget) for budget in chart.all("PodDisruptionBudget")}

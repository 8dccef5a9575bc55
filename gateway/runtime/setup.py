"""The setup that all parts of a gateway process share."""

from dataclasses import dataclass

from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.scheduler.protocol.lanes import Lane, LaneName


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings and telemetry of one process, and its id."""

    settings: GatewaySettings
    # New with each start: leftovers of an earlier process are the reaper's.
    gateway_id: str
    lanes: dict[LaneName, Lane]
    telemetry: Telemetry

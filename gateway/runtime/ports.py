"""Bounds on the resources of this process that clients may use: connections, bodies, invalid requests."""

from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.http.body_budget import BodyBudget, Trimmer
from fairlane.gateway.http.connections import ConnectionLimiter
from fairlane.gateway.http.refusals import Malformed
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.middleware.tenant import RefusedRequests


class Ports:
    """The bounds of all ports."""

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry) -> None:
        self._section = section = settings.gateway
        self.bodies = BodyBudget(
            most_bytes=section.body_bytes, most_tenant_bytes=section.tenant_body_bytes, freed=Trimmer().freed
        )
        self.refused = RefusedRequests(section.refused_per_minute)
        self.malformed = Malformed()
        self.limiter = self.new_limiter()
        telemetry.connections.set_function(lambda: self.limiter.count)
        telemetry.most_connections.set(section.max_connections)
        telemetry.connections_cut.read = lambda: self.limiter.gave_way + self.limiter.turned_away
        telemetry.malformed.read = lambda: self.malformed.count

    def new_limiter(self) -> ConnectionLimiter:
        section = self._section
        return ConnectionLimiter(most=section.max_connections, most_of_an_address=section.max_connections_of_an_address)

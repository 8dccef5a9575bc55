"""Run one gateway, of one process or several, against FAIRLANE_REDIS_URL: `python -m fairlane.gateway`."""

import asyncio
import logging
import os
import resource
import socket
import sys

import msgspec

from fairlane.common.gc_tuning import OF_A_GATEWAY, collect_seldom
from fairlane.common.otlp import check_exports, span_exporter
from fairlane.common.settings_error import SettingsError
from fairlane.gateway import config
from fairlane.gateway.http.body_budget import keep_little
from fairlane.gateway.http.ports import Member, PortRefused, Sockets, listen
from fairlane.gateway.insight.telemetry.logging import start_logging

log = logging.getLogger(__name__)

# File descriptors that a gateway needs in addition to its client connections.
OTHER_FILES = 512
# Maximum time for which the event loop waits for a thread that parses a large body. Python's default is 5 ms.
SWITCH_EVERY_S = 0.001


def main() -> int:
    """Check the settings, then serve until SIGTERM. Return 0, or 2 for an invalid setting or a port in use."""
    line = config.parse(sys.argv[1:])
    try:
        settings = config.read(line, os.environ)
        check_exports(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    if line.check_only:
        return 0
    if line.member is not None:
        start_logging(settings.log_level, line.member.name, settings.log_format)
        inherited = {
            name: [socket.socket(fileno=each) for each in found] for name, found in line.member.sockets.items()
        }
        return _serve(settings, inherited, line.member)
    from fairlane.gateway.api.store_checks import check_start

    try:
        check_start(settings.stores)
        sockets = asyncio.run(listen(settings))
    except (PortRefused, SettingsError) as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    start_logging(settings.log_level, form=settings.log_format)
    if settings.gateway.processes > 1:
        from fairlane.gateway import processes

        return asyncio.run(processes.run(settings, sys.argv[1:], sockets))
    return _serve(settings, sockets)


def _serve(settings: config.GatewaySettings, sockets: Sockets, member: Member | None = None) -> int:
    # Imports here, so that `--check-config` does not load the whole gateway.
    keep_little()
    sys.setswitchinterval(SWITCH_EVERY_S)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # strings are encoded one at a time
    import uvloop
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from fairlane.common.otlp_metrics import exported_over_otlp
    from fairlane.gateway import server
    from fairlane.gateway.insight.telemetry.metrics import SERVICE, VERSION
    from fairlane.gateway.runtime.resources import Resources

    exporter = span_exporter(os.environ)
    processor = None if exporter is None else BatchSpanProcessor(exporter)
    settings = _within_open_files(settings)
    resources = Resources(settings, processor, member)
    beside: Sockets = {name: found for name, found in sockets.items() if name != "tenants"}
    serving = server.Server(server.configure(settings, resources), resources, shares=member is not None, beside=beside)
    collect_seldom(OF_A_GATEWAY)
    registry, instance = resources.telemetry.registry, resources.gateway_id
    with exported_over_otlp(registry, os.environ, service=SERVICE, version=VERSION, instance=instance):
        uvloop.run(serving.serve([*sockets["tenants"]]))
    return 0 if serving.started else 1


def _within_open_files(settings: config.GatewaySettings) -> config.GatewaySettings:
    """Raise the limit of open files to the hard limit, and lower `max_connections` to fit in it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    room = max(most - OTHER_FILES, 1) if most != resource.RLIM_INFINITY else settings.gateway.max_connections
    if room >= settings.gateway.max_connections:
        return settings
    log.warning(
        "only %d files may be open here, so gateway.max_connections is %d instead of %d: raise ulimit -Hn",
        most,
        room,
        settings.gateway.max_connections,
    )
    section = msgspec.structs.replace(settings.gateway, max_connections=room)
    return msgspec.structs.replace(settings, gateway=section)


if __name__ == "__main__":
    sys.exit(main())

"""The command `fairlane gateway`."""

from fairlane.cli.main import EXTRA, need
from fairlane.cli.processes.command import process_app
from fairlane.gateway.config import FLAGS, GatewaySettings

app = process_app("fairlane.gateway", GatewaySettings, FLAGS, lambda: need(EXTRA))

"""The command `fairlane worker`."""

from fairlane.cli.processes.command import process_app
from fairlane.worker.config import FLAGS, WorkerSettings

# The process checks its packages itself, since they depend on the engine.
app = process_app("fairlane.worker", WorkerSettings, FLAGS, lambda: None)

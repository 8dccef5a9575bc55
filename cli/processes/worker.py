"""`fairlane worker`."""

from fairlane.cli.processes.command import process_app
from fairlane.worker.config import FLAGS, WorkerSettings

# Packages are not checked here: which of them a worker needs depends on its engine, and the process says so itself.
app = process_app("fairlane.worker", WorkerSettings, FLAGS, lambda: None)

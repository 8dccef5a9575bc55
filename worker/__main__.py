"""`python -m worker`: one worker process. Settings are checked before torch is imported."""

import logging
import os
import signal
import sys
from collections.abc import Callable, MutableMapping, Sequence

from fairlane.common.gc_tuning import no_collection
from fairlane.common.otlp import check_exports
from fairlane.common.settings_error import SettingsError
from fairlane.worker.config import WorkerSettings, parse, read, start_logging
from fairlane.worker.engine.engine import OpenedEngine
from fairlane.worker.errors import EngineError, ModelError
from fairlane.worker.model.files import check_installed, check_name

log = logging.getLogger(__name__)

BAD_SETTINGS = 2

OpenEngine = Callable[[WorkerSettings], OpenedEngine]


def main(arguments: Sequence[str], environ: MutableMapping[str, str]) -> int:
    """Check the settings, then serve until stopped; return the exit status."""
    line = parse(arguments)
    try:
        settings = read(line, environ)
        check_exports(environ)
        check_name(settings.model)
        if settings.worker.engine == "own":
            check_installed(settings.model)
    except (SettingsError, ModelError) as error:
        sys.stderr.write(f"{error}\n")
        return BAD_SETTINGS
    if line["check_config"]:
        return 0
    start_logging(settings.log_level, settings.log_format)
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing to drain while the model loads
        signal.signal(number, lambda *_: sys.exit(0))
    prepare_threads(environ)
    return _serve(settings, environ)


def prepare_threads(environ: MutableMapping[str, str]) -> None:
    """Make OpenMP's idle threads sleep instead of spin; OpenMP reads this when torch is imported."""
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _serve(settings: WorkerSettings, environ: MutableMapping[str, str]) -> int:
    is_ours = settings.worker.engine == "own"
    try:
        with no_collection():
            open_engine = _ours() if is_ours else _remote()

            from fairlane.worker.runtime import serve
    except ModuleNotFoundError as error:
        needs = "a worker needs fairlane[worker]" if is_ours else "a remote engine needs fairlane[remote]"
        sys.stderr.write(f"worker: {error.name or error} is not installed: {needs}\n")
        return BAD_SETTINGS

    try:
        return serve(settings, environ, open_engine)
    except (SettingsError, ModelError, EngineError) as error:
        log.error("%s", error)
        return BAD_SETTINGS


def _ours() -> OpenEngine:
    import torch  # noqa: F401 - first: transformers warns without it

    # Import now what loading a model would import later: a third of the startup time.
    from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: F401

    from fairlane.worker.own_engine import open_engine

    return open_engine


def _remote() -> OpenEngine:
    from fairlane.worker.remote.open import open_engine

    return open_engine


if __name__ == "__main__":
    status = main(sys.argv[1:], os.environ)
    logging.shutdown()
    os._exit(status)  # an engine that hangs in the driver must not block the exit

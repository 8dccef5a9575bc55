"""Settings of the lanes inside vLLM: the shared settings, from the environment and from vLLM's own `--additional-config
'{"fairlane": {"lanes": {"throughput": {"share_floor": 0.1}}}}'`. The environment takes precedence."""

import os
from collections.abc import Mapping
from typing import Any

from fairlane.scheduler.protocol.settings import SharedSettings, load


def read_settings(additional_config: object, environ: Mapping[str, str] | None = None) -> SharedSettings:
    """Return the merged settings. `additional_config` is vLLM's. Raises SettingsError."""
    document: Any = additional_config.get("fairlane") if isinstance(additional_config, dict) else None
    return load(SharedSettings, document=document, environ=os.environ if environ is None else environ)

"""The worker's settings: the shared ones and its own section, read once and checked before torch is imported."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from fairlane.common.log_lines import JsonLines, LogFormat, TextLines, quiet_libraries
from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.protocol.grammar_limits import KEPT_BYTES, KEPT_TENANT_BYTES, MAX_COMPILED_BYTES
from fairlane.scheduler.protocol.settings import ByteSize, Port, SharedSettings, load, read_document
from fairlane.scheduler.protocol.settings_help import described, process_parser
from fairlane.scheduler.queue.shards import MAX_SHARDS
from fairlane.store import urls

EngineKind = Literal["own", "vllm", "sglang", "openai"]
FLAGS = ("redis_url", "model", "data_dir", "log_level", "worker.engine", "worker.engine_url", "worker.engine_model")
_DEVICE = re.compile(r"^(auto|cpu|cuda(:\d+)?)$")


class WorkerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the worker alone: `FAIRLANE_WORKER__…`, or `worker:` in the file."""

    engine: EngineKind = "own"
    """The engine: `own` runs in this process; otherwise the kind of server at `engine_url` that runs the jobs."""
    engine_url: str | None = None
    """URL of the engine's server, with `http://` or `https://`; only with an external engine."""
    engine_key: str | None = None
    """API key of the engine's server, if it needs one."""
    engine_model: str | None = None
    """Name of the model or adapter to use on the engine's server; unset: its first model."""
    generation_config: bool = True
    """Use the model's `generation_config.json` as defaults for sampling parameters that a request omits."""
    kv_memory: ByteSize | None = None
    """Bytes of the device's KV pool; None: sized from the free memory."""
    host_kv_memory: ByteSize | None = None
    """Bytes of the host pool for swapped blocks; None: sized from the free memory."""
    grammar_memory: ByteSize = ByteSize(KEPT_BYTES)
    """Bytes of compiled grammars that are cached for later requests; at least `8MiB`."""
    grammar_memory_per_tenant: ByteSize = ByteSize(KEPT_TENANT_BYTES)
    """Bytes of compiled grammars that are cached per tenant; at least `8MiB`."""
    queue_shards: Annotated[int, msgspec.Meta(ge=1, le=MAX_SHARDS)] = 1
    """Shards of the model's queue, which a cluster spreads over its nodes; the same for all workers of a model."""
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    """Tokens per KV block."""
    max_sequences: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    """Maximum number of sequences in one step."""
    max_step_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 512
    """Maximum number of tokens computed in one step, prefill and decode together."""
    prefix_cache: bool = True
    """Keep the KV blocks of earlier requests for later requests of the same tenant with the same prefix."""
    prefix_share: Annotated[float, msgspec.Meta(ge=0.01, le=1.0)] = 0.25
    """Share of the KV pool up to which a tenant's cached prefixes are protected from tenants that cache more."""
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """Weight type; `int8` keeps everything else in bfloat16, and is used where that is faster, otherwise auto."""
    device: str = "auto"
    threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Compute threads; 0: one per core that this process may use."""
    models_dir: str | None = None
    """Directory of converted weights; None: `models/` in the data directory."""
    metrics_port: Port = 0
    """Port of the worker's own `/metrics` and `/costs`; 0: none."""
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """Seconds that running jobs may continue after SIGTERM before they return to the queue."""


class WorkerSettings(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a worker process."""

    worker: WorkerSection = WorkerSection()

    @property
    def models_directory(self) -> Path:
        return Path(self.worker.models_dir or Path(self.data_dir) / "models")

    @property
    def store_url(self) -> str:
        if self.redis_url is None:
            raise SettingsError("setting redis_url: a worker needs a store; set FAIRLANE_REDIS_URL")
        return self.redis_url


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments. Exits with status 2 if they are invalid, as argparse does."""
    parser = process_parser("fairlane worker", "Run one Fairlane worker.", described(WorkerSettings, FLAGS))
    return vars(parser.parse_args(arguments))


def read(line: Mapping[str, Any], environ: Mapping[str, str]) -> WorkerSettings:
    """Merge file, environment and flags. Raises SettingsError naming the first bad setting."""
    document, flags = read_document(line["config"], environ), {name: line[name] for name in FLAGS}
    settings = load(WorkerSettings, document=document, environ=environ, flags=flags)
    if not _DEVICE.match(settings.worker.device):
        raise SettingsError(f"setting worker.device: expected auto, cpu or cuda[:N], not {settings.worker.device!r}")
    _check_engine(settings.worker)
    _check_grammar_memory(settings.worker)
    url = settings.store_url
    try:
        urls.check(url)
    except ValueError as error:
        raise SettingsError(f"setting redis_url: {error}") from None
    return settings


def _check_engine(section: WorkerSection) -> None:
    if section.engine == "own":
        for name in ("engine_url", "engine_model"):
            if getattr(section, name) is not None:
                kinds = "vllm, sglang or openai"
                raise SettingsError(f"setting worker.engine: an {name} needs a kind of engine: {kinds}")
        return
    parts = urlsplit(section.engine_url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"setting worker.engine_url: the engine {section.engine} needs an http:// or https:// URL")
    if parts.username or parts.query or parts.fragment:
        raise SettingsError("setting worker.engine_url: no user, query or fragment; a key goes into worker.engine_key")


def _check_grammar_memory(section: WorkerSection) -> None:
    for name in ("grammar_memory", "grammar_memory_per_tenant"):
        if getattr(section, name) < MAX_COMPILED_BYTES:
            least = f"{MAX_COMPILED_BYTES >> 20}MiB"
            raise SettingsError(f"setting worker.{name}: must be at least {least}, which one grammar may take")


def start_logging(level: str, form: LogFormat = "text") -> None:
    """Log one line per record to stderr. Records never contain prompts, completions or keys."""
    lines = logging.StreamHandler()
    if form == "json":
        lines.setFormatter(JsonLines("worker", os.getpid()))
    else:
        lines.setFormatter(TextLines("%(asctime)s %(levelname)s worker[%(process)d] %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[lines])
    quiet_libraries()

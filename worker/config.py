"""The worker's settings: the shared ones and its own section, read once and checked before torch is imported."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from fairlane.scheduler.protocol.grammar_limits import KEPT_BYTES, KEPT_TENANT_BYTES, MOST_COMPILED_BYTES
from fairlane.scheduler.protocol.log_lines import JsonLines, LogFormat, TextLines, quiet_libraries
from fairlane.scheduler.protocol.settings import (
    ByteSize,
    Port,
    SettingsError,
    SharedSettings,
    load,
    read_document,
)
from fairlane.scheduler.protocol.settings_help import described, process_parser
from fairlane.store import urls

EngineKind = Literal["own", "vllm", "sglang", "openai"]
FLAGS = ("redis_url", "model", "data_dir", "log_level", "worker.engine", "worker.engine_url", "worker.engine_model")
"""Settings that have a flag of their own, by path."""
_DEVICE = re.compile(r"^(auto|cpu|cuda(:\d+)?)$")


class WorkerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What only a worker is told: `FAIRLANE_WORKER__…`, or `worker:` in the file."""

    engine: EngineKind = "own"
    """`own`: in this process; else the kind of server at `engine_url` that computes what this worker leases."""
    engine_url: str | None = None
    """URL of the server that computes, with `http://` or `https://`; only with an engine elsewhere."""
    engine_key: str | None = None
    """The key that the server asks for, if it does."""
    engine_model: str | None = None
    """Which of the models that the server has, an adapter perhaps, by its name there; unset: the first."""
    generation_config: bool = True
    """Where a request does not say how tokens are drawn, they are as the model's file of that name has it."""
    kv_memory: ByteSize | None = None
    """Bytes of the device's KV pool; None: sized from what is free."""
    host_kv_memory: ByteSize | None = None
    """Bytes of the host pool that swapped blocks go to; None: sized from what is free."""
    grammar_memory: ByteSize = ByteSize(KEPT_BYTES)
    """Bytes that compiled grammars of answers may take while they are kept for the next request; at least `8MiB`."""
    grammar_memory_per_tenant: ByteSize = ByteSize(KEPT_TENANT_BYTES)
    """The same of one tenant's."""
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    """Tokens per KV block."""
    max_sequences: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    """Sequences in one step."""
    max_step_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 512
    """Tokens computed in one step, prefill and decode together."""
    prefix_cache: bool = True
    """Keep the KV of earlier requests, for those of the same tenant that begin alike."""
    prefix_share: Annotated[float, msgspec.Meta(ge=0.01, le=1.0)] = 0.25
    """Part of the KV pool up to which what a tenant keeps so is safe from tenants that keep more."""
    dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """`int8`: weights of 8 bits, all else bfloat16, where that is faster; elsewhere auto."""
    device: str = "auto"
    threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Threads of the arithmetic; 0: one per core that this process may use."""
    models_dir: str | None = None
    """Where converted weights are kept; None: `models/` in the data directory."""
    metrics_port: Port = 0
    """Port of the worker's own `/metrics` and `/costs`; 0: none."""
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """How long what runs may go on after SIGTERM before it is handed back."""


class WorkerSettings(SharedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a worker process is told."""

    worker: WorkerSection = WorkerSection()

    @property
    def models_directory(self) -> Path:
        return Path(self.worker.models_dir or Path(self.data_dir) / "models")

    @property
    def store_url(self) -> str:
        """Where the store is. Raises SettingsError where none was named."""
        if self.redis_url is None:
            raise SettingsError("setting redis_url: a worker needs a store; set FAIRLANE_REDIS_URL")
        return self.redis_url


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    """What the worker process was called with."""

    config: str | None
    check_only: bool
    flags: Mapping[str, object]


def parse(arguments: Sequence[str]) -> WorkerArguments:
    """Read the arguments. Ends the process with status 2 where they are wrong, as argparse does."""
    parser = process_parser("fairlane worker", "Run one Fairlane worker.", described(WorkerSettings, FLAGS))
    found = vars(parser.parse_args(arguments))
    flags = {name: found[name] for name in FLAGS}
    return WorkerArguments(found["config"], found["check_config"], flags)


def read(line: WorkerArguments, environ: Mapping[str, str]) -> WorkerSettings:
    """Merge file, environment and flags. Raises SettingsError naming the first bad setting."""
    document = read_document(line.config, environ)
    settings = load(WorkerSettings, document=document, environ=environ, flags=line.flags)
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
    """Raises SettingsError where an engine elsewhere has no URL, or our own has one."""
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
    """Raises SettingsError where one grammar might not fit."""
    for name in ("grammar_memory", "grammar_memory_per_tenant"):
        if getattr(section, name) < MOST_COMPILED_BYTES:
            least = f"{MOST_COMPILED_BYTES >> 20}MiB"
            raise SettingsError(f"setting worker.{name}: must be at least {least}, which one grammar may take")


def start_logging(level: str, form: LogFormat = "text") -> None:
    """One line per record on stderr; records never hold content or keys."""
    lines = logging.StreamHandler()
    if form == "json":
        lines.setFormatter(JsonLines("worker", os.getpid()))
    else:
        lines.setFormatter(TextLines("%(asctime)s %(levelname)s worker[%(process)d] %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[lines])
    quiet_libraries()

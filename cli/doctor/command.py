"""`fairlane doctor`: runs every check and says what to do; exits with 1 if one failed."""

import asyncio
import os

import msgspec
import typer

from fairlane.cli.client import Url
from fairlane.cli.config import complaints_of
from fairlane.cli.doctor.findings import Finding, fail, ok
from fairlane.cli.doctor.machine import check_machine, check_network
from fairlane.cli.doctor.software import check_software
from fairlane.cli.doctor.store import check_store
from fairlane.cli.main import ConfigFile
from fairlane.cli.printer import Output, OutputCommand, OutputForm, show_list
from fairlane.gateway.config import GatewaySettings
from fairlane.scheduler.protocol.settings import load, read_document
from fairlane.worker.config import WorkerSettings

app = typer.Typer(add_completion=False)

COLUMNS = ("check", "state", "found", "what to do")


@app.command(cls=OutputCommand)
def doctor(config: ConfigFile = None, url: Url = None, output: Output = OutputForm.TABLE) -> None:
    """Check that this machine is ready to serve: settings, versions, model, memory, ports, store, clock.

    Nothing is changed, and no admin key is needed. Exits with 1 if a check failed; warnings exit with 0."""
    findings = asyncio.run(examine(config, url))
    shown = [msgspec.to_builtins(finding) for finding in findings]
    show_list(shown, COLUMNS, lambda each: (each["check"], each["state"], each["found"], each["advice"]), output)
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(1)


async def examine(config: str | None, url: str | None) -> list[Finding]:
    """Return all findings; with invalid settings, only those that need no settings."""
    complaints = complaints_of(config, os.environ, "serve")
    if complaints:
        advice = "correct it; `fairlane config show` shows where each setting comes from"
        return [*(fail("settings", each, advice) for each in complaints), *check_software(None)]
    document = read_document(config, os.environ)
    gateway = load(GatewaySettings, document=document, environ=os.environ)
    worker = load(WorkerSettings, document=document, environ=os.environ)
    findings = [ok("settings", "valid"), *check_software(worker), *check_machine(gateway, worker)]
    findings += [finding async for finding in check_network(gateway, worker, url)]
    findings += [finding async for finding in check_store(gateway)]
    return findings

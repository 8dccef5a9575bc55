"""Each of `examples/` as its README says to run it, against one running server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.system.harness import ADMIN_KEY, Server

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FAIRLANE = ("-c", "from fairlane.cli.main import main; main()")


def run(server: Server, key: str, *arguments: str | Path) -> str:
    """What Python prints when it is run so, from the repository's root."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OPENAI_"))}
    environ |= {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{server.url}/v1"}
    environ |= {"FAIRLANE_URL": server.admin_url, "FAIRLANE_ADMIN_KEY": ADMIN_KEY, "COLUMNS": "200"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat_prints_an_answer_and_a_stream_with_its_usage(server: Server) -> None:
    printed = run(server, server.tenant("example-chat"), EXAMPLES / "chat.py")

    assert "Paris" in printed
    assert "output tokens" in printed.splitlines()[-1]


def test_structured_prints_a_city_and_a_verdict(server: Server) -> None:
    city, verdict = run(server, server.tenant("example-structured"), EXAMPLES / "structured.py").splitlines()

    assert city.startswith("City(name=")
    assert verdict in {"complaint", "praise", "question"}


def test_tools_prints_the_call_and_goes_on_from_its_result(server: Server) -> None:
    call, *told = run(server, server.tenant("example-tools"), EXAMPLES / "tools.py").splitlines()

    assert call.startswith('weather {"city": "')
    assert "".join(told)


@pytest.mark.thorough
def test_batch_comes_through_a_limit_of_concurrency(server: Server, tmp_path: Path) -> None:
    key = server.tenant("example-batch", limits={"concurrent_requests": 2})
    asked, answered = EXAMPLES / "prompts.jsonl", tmp_path / "answers.jsonl"

    printed = run(server, key, EXAMPLES / "batch.py", asked, answered, "--in-flight", "6")

    answers = [json.loads(line) for line in answered.read_text().splitlines()]
    assert len(answers) == len(asked.read_text().splitlines())
    assert printed == f"{len(answers)} answered, 0 failed\n"
    assert {answer["service_tier"] for answer in answers} == {"flex"}
    assert "Paris" in answers[0]["choices"][0]["message"]["content"]


def test_batch_writes_down_what_can_never_be_answered(server: Server, tmp_path: Path) -> None:
    key = server.tenant("example-small", limits={"max_output_tokens": 1})
    asked, answered = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    asked.write_text('{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}\n')

    assert run(server, key, EXAMPLES / "batch.py", asked, answered) == "0 answered, 1 failed\n"
    assert "error" in json.loads(answered.read_text())


def test_a_deadline_of_a_millisecond_is_not_kept(server: Server) -> None:
    possible, impossible = run(server, server.tenant("example-dated"), EXAMPLES / "deadlines.py").splitlines()

    assert "Paris" in possible
    assert "429 deadline_unattainable" in impossible or "504 deadline_exceeded" in impossible


def test_a_file_of_tenants_is_applied_once(server: Server) -> None:
    apply = (*FAIRLANE, "tenants", "apply", "--file", EXAMPLES / "tenants.yaml")

    first, second = run(server, "", *apply), run(server, "", *apply)

    assert "create acme-batch" in first
    assert second == ""


@pytest.mark.thorough
def test_a_trace_is_simulated_at_both_loads(server: Server, tmp_path: Path) -> None:
    trace, figures = EXAMPLES / "trace.csv", tmp_path / "figures.json"
    simulate = (*FAIRLANE, "simulate", "--trace", trace, "--hardware", "a100-8b", "--load", "1", "--load", "4")

    run(server, "", *simulate, "--json", figures)

    assert [each["load"] for each in json.loads(figures.read_text())["runs"]] == [1, 4]

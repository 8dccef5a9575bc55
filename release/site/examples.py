"""How to send each documented call: with curl, and in Python with the SDK that has it, else with httpx."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from release.site.shapes import Json

BASE_URL = "http://127.0.0.1:8000"
KEYS = {"tenant": "OPENAI_API_KEY", "admin": "FAIRLANE_ADMIN_KEY"}
SDK_METHODS: Mapping[str, str] = {
    "create_chat_completion": "openai.chat.completions.create",
    "create_completion": "openai.completions.create",
    "create_embeddings": "openai.embeddings.create",
    "list_models": "openai.models.list",
    "get_model": "openai.models.retrieve",
    "create_response": "openai.responses.create",
    "count_response_input_tokens": "openai.responses.input_tokens.count",
    "compact_response": "openai.responses.compact",
    "get_response": "openai.responses.retrieve",
    "delete_response": "openai.responses.delete",
    "list_response_input_items": "openai.responses.input_items.list",
    "create_conversation": "openai.conversations.create",
    "get_conversation": "openai.conversations.retrieve",
    "change_conversation": "openai.conversations.update",
    "delete_conversation": "openai.conversations.delete",
    "create_conversation_items": "openai.conversations.items.create",
    "list_conversation_items": "openai.conversations.items.list",
    "get_conversation_item": "openai.conversations.items.retrieve",
    "delete_conversation_item": "openai.conversations.items.delete",
    "upload_file": "openai.files.create",
    "list_files": "openai.files.list",
    "get_file": "openai.files.retrieve",
    "delete_file": "openai.files.delete",
    "get_file_content": "openai.files.content",
    "create_batch": "openai.batches.create",
    "list_batches": "openai.batches.list",
    "get_batch": "openai.batches.retrieve",
    "cancel_batch": "openai.batches.cancel",
    "create_message": "anthropic.messages.create",
    "count_message_tokens": "anthropic.messages.count_tokens",
    "create_message_batch": "anthropic.messages.batches.create",
    "list_message_batches": "anthropic.messages.batches.list",
    "get_message_batch": "anthropic.messages.batches.retrieve",
    "delete_message_batch": "anthropic.messages.batches.delete",
    "cancel_message_batch": "anthropic.messages.batches.cancel",
    "get_message_batch_results": "anthropic.messages.batches.results",
}
"""The method of an SDK that sends an operation. Its first argument is the last id of the path."""
_CLIENTS = {
    "openai": f'client = openai.OpenAI(base_url="{BASE_URL}/v1")  # the key is in OPENAI_API_KEY',
    "anthropic": f'client = anthropic.Anthropic(base_url="{BASE_URL}")  # the key is in ANTHROPIC_API_KEY',
}
_WIDTH = 100
"""Characters of a line, above which a call has one argument on each."""
_VALUES = {"tenant": "acme", "model": "SmolLM2-135M-Instruct"}
_FILES = {"upload_file": "requests.jsonl", "upload_trace": "arrivals.csv"}


def curl(operation: Json) -> str:
    """Return the command that sends a call."""
    body, form = body_of(operation), _form(operation)
    usual = "GET" if body is None and not form else "POST"
    words = ["-N"] if is_stream(operation) else []
    words += ["-X", operation["method"]] if operation["method"] != usual else []
    lines = [shlex.join(["curl", *words, BASE_URL + _path(operation)])]
    if key := KEYS.get(operation["tags"][0]):
        lines.append(f'-H "Authorization: Bearer ${key}"')
    lines += [f"-F {shlex.quote(f'{name}={value}')}" for name, value in form.items()]
    if body is not None:
        fields = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in body.items()]
        lines += ["-H 'content-type: application/json'", f"-d {shlex.quote(_broken('{', fields, '}'))}"]
    return " \\\n  ".join(lines)


def python(operation: Json) -> str:
    """Return the program that sends a call."""
    method = SDK_METHODS.get(operation["operationId"])
    if method is None:
        return _with_httpx(operation)
    package, _, name = method.partition(".")
    call = _broken(f"client.{name}(", _arguments(operation), ")")
    return (
        f"import {package}\n\n{_CLIENTS[package]}\nprint({call})"
        if "\n" not in call
        else (f"import {package}\n\n{_CLIENTS[package]}\nanswer = {call}\nprint(answer)")
    )


def _with_httpx(operation: Json) -> str:
    method, key = operation["method"], KEYS.get(operation["tags"][0])
    given = [json.dumps(BASE_URL + _path(operation))]
    if key:
        given.append('headers={"authorization": f"Bearer {key}"}')
    if (body := body_of(operation)) is not None:
        given.append(f"json={_literal(body)}")
    if form := _form(operation):
        given.append(f'files={{"file": open("{form["file"][1:]}", "rb")}}')
    known = f'import os\n\nimport httpx\n\nkey = os.environ["{key}"]\n' if key else "import httpx\n\n"
    if is_stream(operation):
        call = _broken("httpx.stream(", [json.dumps(method), *given], ")")
        return f"{known}with {call} as answer:\n    for line in answer.iter_lines():\n        print(line)"
    send = _broken("httpx.request(", [json.dumps(method), *given], ")")
    return f"{known}answer = {send}\nprint(answer.status_code, answer.text)"


def _broken(before: str, parts: Sequence[str], after: str) -> str:
    """Join the parts of a call or an object: in one line, or if that is long, in one for each."""
    whole = f"{before}{', '.join(parts)}{after}"
    if len(whole) <= _WIDTH:
        return whole
    lines = ",\n".join(f"    {part}" for part in parts)
    return f"{before}\n{lines}{',' if after == ')' else ''}\n{after}"


def body_of(operation: Json) -> Any:  # noqa: ANN401 - any JSON
    """Return the example of a call's JSON body; None without one."""
    return operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")


def is_stream(operation: Json) -> bool:
    """Return whether a call answers with events alone."""
    return [*operation["responses"].get("200", {}).get("content", {})] == ["text/event-stream"] and not body_of(
        operation
    )


def _arguments(operation: Json) -> list[str]:
    """Return the arguments of an SDK's method: the last id of the path, the other ids, the fields of the body."""
    *others, last = re.findall(r"{(\w+)}", operation["path"]) or [""]
    given = [json.dumps(_value(last))] if last else []
    given += [f"{name}_id={json.dumps(_value(name))}" for name in others]
    given += [f"{name}={_literal(value)}" for name, value in (body_of(operation) or {}).items()]
    for name, value in _form(operation).items():
        given.append(f'{name}=open("{value[1:]}", "rb")' if value.startswith("@") else f"{name}={json.dumps(value)}")
    return given


def _form(operation: Json) -> dict[str, str]:
    """Return the fields of an upload, as curl writes them."""
    file = _FILES.get(operation["operationId"])
    if file is None:
        return {}
    return {**({"purpose": "batch"} if operation["operationId"] == "upload_file" else {}), "file": f"@{file}"}


def _path(operation: Json) -> str:
    return re.sub(r"{(\w+)}", lambda found: _value(found[1]), operation["path"])


def _value(name: str) -> str:
    return _VALUES.get(name, f"{name.removesuffix('_id').upper()}_ID")


def _literal(value: object) -> str:
    """Return a value as Python writes it, with the quotes of this code."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_literal(name)}: {_literal(each)}" for name, each in value.items()) + "}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return repr(value)

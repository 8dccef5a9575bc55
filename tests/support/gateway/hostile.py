"""What is sent to break a gateway: valid bodies to begin from, and what is put into them."""

from typing import Any

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "What it is like", "parameters": WEATHER, "strict": True}
TOOLS = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": {"name": "time"}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Köln?"}], "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Well."},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]
BLOCKS = [
    {"role": "user", "content": "Köln?"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Well.", "signature": "s"}, {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain", "is_error": False}]},
]  # fmt: skip
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Köln?"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Well."}], "encrypted_content": "x"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
]


def formatted(schema: Any) -> dict[str, Any]:
    """A `response_format`."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "n": 2}),
    ("/v1/chat/completions", {**CHAT, "messages": TURNS, "tools": TOOLS, "tool_choice": "auto", "stream": True}),
    ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": True}),
    ("/v1/chat/completions", {**CHAT, "tools": TOOLS, "tool_choice": {
        "type": "function", "function": {"name": "weather"}}, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "response_format": formatted(WEATHER), "logit_bias": {"5": -3}}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"regex": "a+b"}, "stop": ["x", "\n"]}),
    ("/v1/chat/completions", {**CHAT, "guided_choice": ["yes", "no"], "metadata": {"a": "b"}, "seed": 3}),
    ("/v1/chat/completions", {**CHAT, "guided_grammar": 'start: "a" | "b" start', "temperature": 0.5}),
    ("/v1/chat/completions", {**CHAT, "messages": TURNS[:3], "continue_final_message": True, "documents": [{"a": "b"}],
        "reasoning_effort": "none", "chat_template_kwargs": {"thinking": False}, "include_reasoning": False}),
    ("/v1/chat/completions", {**CHAT, "functions": [FUNCTION], "function_call": {"name": "weather"}, "stream": True,
        "add_generation_prompt": False, "add_special_tokens": True, "truncate_prompt_tokens": 9}),
    ("/v1/completions", {"model": "tiny", "prompt": ["a", [5, 6, 7]], "max_tokens": 4, "n": 2, "logprobs": 2}),
    ("/v1/completions", {"model": "tiny", "prompt": "a", "echo": True, "stream": True, "guided_json": WEATHER}),
    ("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 4, "stream": True}),
    ("/v1/responses", {"model": "tiny", "input": ITEMS, "max_output_tokens": 4, "instructions": "Be brief.",
        "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "patch"},
                  {"type": "namespace", "name": "ns", "tools": [{"type": "custom", "name": "b"}]}]}),
    ("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 4, "previous_response_id": "resp_0",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": WEATHER}}, "reasoning": {"effort": None}}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": BLOCKS, "system": [{"type": "text", "text": "a"}],
        "tools": [{"name": "weather", "input_schema": WEATHER}], "tool_choice": {"type": "any"}}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": BLOCKS[:1], "stream": True,
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["x"]}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": BLOCKS[:1],
        "output_config": {"format": {"type": "json_schema", "schema": WEATHER}}}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": BLOCKS, "tools": [
        {"name": "weather", "input_schema": WEATHER}]}),
    ("/tokenize", {"model": "tiny", "prompt": "Hi", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"model": "tiny", "messages": TURNS, "tools": TOOLS}),
    ("/detokenize", {"model": "tiny", "tokens": [5, 6, 7]}),
    ("/v1/embeddings", {"model": "tiny", "input": ["a"]}),
    ("/pooling", {"model": "tiny", "input": ["a", [5, 6]], "task": "embed", "truncate_prompt_tokens": 8}),
    ("/v1/score", {"model": "tiny", "text_1": "a", "text_2": ["b", {"text": "c"}], "truncate_prompt_tokens": 8}),
    ("/v2/rerank", {"model": "tiny", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    ("/v1/batches", {"input_file_id": "file-0", "endpoint": "/v1/completions", "completion_window": "24h"}),
]  # fmt: skip


def _chain(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _doubling(depth: int) -> dict[str, Any]:
    """Each definition has two of the next."""
    pair = [{"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(depth)]
    return {"$ref": "#/$defs/d0", "$defs": {**{f"d{at}": each for at, each in enumerate(pair)}, f"d{depth}": {}}}


SCHEMAS: list[Any] = [
    {},
    False,
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}, "required": ["c"]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 10**9},
    {"type": "array", "minItems": 5_000, "maxItems": 5_000, "items": {"type": "array", "minItems": 5_000}},
    {"type": "string", "minLength": 10**6, "maxLength": 10**6},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "string", "pattern": "((((.{0,200}){0,200}){0,200})a){3}b"},
    {"type": "string", "pattern": "(?=a)b\\1"},
    {"type": "string", "format": "date-time", "maxLength": 3},
    {"type": "integer", "minimum": -(10**300), "multipleOf": 1e-300},
    {"type": "number", "multipleOf": 0.0000001, "maximum": 1e308},
    {"allOf": [{"anyOf": [{"properties": {f"p{a}{b}": {}}} for b in range(6)]} for a in range(10)]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in range(300)]},
    {"enum": [f"value {number}" * 4 for number in range(900)]},
    {"enum": [[[[1]]], {"a": {"b": None}}, 1e400, -0.0]},
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}},
    {"type": "object", "patternProperties": {"^(a|b)*$": {}, "(": {}}, "additionalProperties": {"not": {}}},
    {"x-guidance": {"lenient": True, "whitespace_pattern": "((((", "item_separator": ".*"}, "not": {}},
    {"type": ["object", "no such"], "properties": [], "required": "a"},
    _chain(40),
    _chain(120),
    _doubling(30),
]
REGEXES = [
    "(",
    "a{1000}{1000}",
    "(a|a)*b",
    "(.*a){20}",
    "\\p{L}{500}",
    "(?i)" + "é" * 400,
    "^$",
    "[^\\x00-\\x{10FFFF}]",
]
GRAMMARS = [
    'start: start "a"', 'start: ("a" start)~1000', "start: " + "(" * 300 + '"a"' + ")" * 300, "root ::= root",
    'start: %json {"type": "nothing"}', 'start: @other', "start: <[0]> <[999999999]>", 'start: /(?=a)/', "%ignore /.*/",
    'start: "a"{1000000}', 'a{99999999}', 'start[capture="x", stop=/./, max_tokens=0]: /./',
]  # fmt: skip
TEXTS = [
    "", " ", "\0", "\ud800", "\u2028\u2029\x85", "é" * 5_000, "x" * 70_000, "../../etc/passwd", "null", "NaN", "$NAME",
    "<|im_end|>", "<tool_call>", "{{ 7 * 7 }}", "{% for x in y %}", "%s%n", "\x1b[2J", "a\r\n\r\ndata: [DONE]\n\n",
    "\u202e", "required", "json_object", "text", "assistant", "tool", "function", "auto",
]  # fmt: skip


def _nested(depth: int) -> Any:
    value: Any = 1
    for at in range(depth):
        value = {"a": value} if at % 2 else [value]
    return value


VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 16, 17, 2**31, 2**53 + 1, 2**63, -(2**63), 10**40, 0.5, 1.0, -0.0, 1e308,
    float("nan"),
    float("inf"), 5e-324, [], {}, [[]], [None], {"": None}, {"type": "function"}, {"type": "text", "text": "a"},
    [5] * 3_000, list(range(100)), ["a"] * 200, {f"k{n}": n for n in range(1_100)}, _nested(60), _nested(300),
    [{"type": "function", "function": {"name": f"f{n}", "parameters": WEATHER}} for n in range(1_000)],
    [{"type": "function", "function": {"name": f"f{n}", "parameters": WEATHER, "strict": True}} for n in range(128)],
    *TEXTS, *SCHEMAS, *REGEXES, *GRAMMARS, *map(formatted, SCHEMAS), *({"regex": each} for each in REGEXES),
    *({"grammar": each} for each in GRAMMARS), *({"json": each} for each in SCHEMAS),
    *([{"type": "function", "function": {**FUNCTION, "parameters": each}}] for each in SCHEMAS),
]  # fmt: skip
KNOWN_FIELDS = sorted({name for _, body in SEEDS for name in body} | {
    "best_of", "suffix", "user", "store", "min_tokens", "ignore_eos", "deadline_ms", "service_tier", "top_k", "min_p",
    "stop_token_ids", "cache_salt", "functions", "function_call", "max_completion_tokens", "$ref", "$defs",
    "anyOf", "oneOf", "allOf", "not", "pattern", "items", "required", "properties", "x-guidance", "enum", "const",
})  # fmt: skip
HEADERS = [
    ("content-type", "text/plain"), ("content-type", "multipart/form-data; boundary=x"), ("content-type", ""),
    ("x-fairlane-lane", "latency"), ("x-fairlane-lane", "nowhere"), ("x-fairlane-deadline-ms", "1e400"),
    ("x-fairlane-deadline-ms", "30000"), ("x-fairlane-ttft-ms", "-1"), ("x-fairlane-progress", "1"),
    ("idempotency-key", "the same"), ("idempotency-key", "x" * 300), ("x-request-id", "a" * 500), ("accept", "nothing"),
    ("traceparent", "00-" + "0" * 32 + "-" + "f" * 16 + "-01"), ("anthropic-version", "0"), ("expect", "100-continue"),
    ("x-stainless-read-timeout", "nan"), ("content-md5", "x"), ("range", "bytes=0-1"), ("x-api-key", "fl-x"),
]  # fmt: skip
WORDS = [
    "The capital of France is Paris.", "\n\ndata: [DONE]\n\n", "event: x\r\rdata: {}", "\u2028\u2029\x85\0 {\"a\": 1}",
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>', '<tool_call>{"name": "weather"',
    '<tool_call>[{"name": "time"}, {"name": "weather", "arguments": "{\\"city\\": 1}"}]', "</tool_call>" * 3,
    "<think>a",
    '<tool_call>{"name": "' + "w" * 70 + '"}', '{"city": "a"}', "🙂🙃 👩‍👩‍👧" * 3,
    "<tool_call>" + "[" * 60, " \n\t " * 8,
]  # fmt: skip

"""Models that call tools, of the families in wide use: a chat template in the manner of each, after what is published
of its format, with a tokenizer trained on the spot."""
# ruff: noqa: RUF001 - DeepSeek's tokens have wide bars in their names

import functools
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from fairlane.scheduler.protocol.messages import ModelCard
from tests.support.gateway.cards import CHATML, CORPUS

_HERMES = """
{%- macro said(message) -%}
{{ message.content or '' }}{%- for call in message.tool_calls or [] %}
{%- set f = call.function %}
{{- '\n<tool_call>\n' + {'name': f.name, 'arguments': f.arguments} | tojson + '\n</tool_call>' }}
{%- endfor -%}
{%- endmacro -%}
{%- if tools %}{{ '<|im_start|>system\nYou call functions.\n<tools>' }}
{%- for tool in tools %}{{ '\n' ~ tool | tojson }}{% endfor %}{{ '\n</tools>\n<tool_call>\n{"name": ' }}
{{- '<function-name>, "arguments": <args>}\n</tool_call><|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\n' + said(message) + '<|im_end|>\n' }}{% endif %}
{%- endfor %}{{ '<|im_start|>assistant\n' }}"""

_QWEN3 = _HERMES.replace(
    "{{ message.content or '' }}",
    "{%- if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif -%}"
    "{{ message.content or '' }}",
)

_QWEN3_5 = """
{%- if tools %}{{ '<|im_start|>system\n# Tools\n<tools>' }}{% for tool in tools %}{{ '\n' ~ tool | tojson }}{% endfor %}
{{- '\n</tools>\n<tool_call>\n<function=example>\n<parameter=p>\nvalue\n</parameter>\n</function>\n</tool_call>' }}
{{- '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
{%- for key, value in call.function.arguments | items %}{{ '<parameter=' + key + '>\n' }}
{{- value | tojson if value is mapping or value is sequence and value is not string else value | string }}
{{- '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{{- '<|im_start|>assistant\n<think>\n' }}"""

_LLAMA3 = """
{{- bos_token }}{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if tools is not none %}{{ '<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n' }}
{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\n\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) }}{{ '\n\n' }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if not message.tool_calls | length == 1 %}{{ raise_exception('Only single tool-calls are taken') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + message.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endif %}{%- endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"""

_MISTRAL = """
{{- bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}
{%- if tools is not none and message == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}
{{- '[AVAILABLE_TOOLS][' }}{% for tool in tools %}{{ {'type': 'function', 'function': tool.function} | tojson }}
{{- ', ' if not loop.last }}{% endfor %}{{ '][/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{ '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Tool call IDs should have length 9') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}{% endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs should have length 9') }}{% endif %}
{{- '[TOOL_RESULTS]{"content": ' ~ message.content ~ ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"""

_MISTRAL_ARGS = """
{{- bos_token }}{% if tools %}{{ '[AVAILABLE_TOOLS]' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}
{%- set f = call.function %}
{{- '[TOOL_CALLS]' + f.name + '[ARGS]' + (f.arguments if f.arguments is string else f.arguments | tojson) }}
{%- endfor %}{{ eos_token }}{% endif %}{% endfor %}"""

_DEEPSEEK = """
{{- bos_token }}{% for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- elif message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' and message.tool_calls is defined %}
{{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}{% for call in message.tool_calls %}
{{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\n```json\n' }}
{{- call.function.arguments + '\n```<｜tool▁call▁end｜>' }}{{ '\n' if not loop.last }}{% endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}{{ '<｜tool▁outputs▁begin｜>' + message.content + '<｜tool▁outputs▁end｜>' }}
{%- else %}{{ '<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}
{%- endfor %}{{ '<｜Assistant｜>' }}"""

_DEEPSEEK_3_1 = (
    _DEEPSEEK.replace("'<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>'", "'<｜tool▁call▁begin｜>'")
    .replace("'\n```json\n' }}", "'<｜tool▁sep｜>' }}")
    .replace("'\n```<｜tool▁call▁end｜>'", "'<｜tool▁call▁end｜>'")
)

_HARMONY = """
{%- macro said(header, text, end) %}{{ '<|start|>' ~ header ~ '<|message|>' ~ text ~ '<|' ~ end ~ '|>' }}{% endmacro %}
{{- said('system', 'Reasoning: ' ~ (reasoning_effort if reasoning_effort is defined else 'medium'), 'end') }}
{%- set asked = namespace(name='') %}
{%- if tools %}{% set listed %}# Tools\n\nnamespace functions {\n{% for t in tools %}
{{- '// ' + t.function.description + '\ntype ' + t.function.name }} = (_: {{ t.function.parameters | tojson }});
{%- endfor %}}{% endset %}{{ said('developer', listed, 'end') }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- if '<|channel|>final<|message|>' in message.content %}{{ raise_exception('Marks are not content') }}{% endif %}
{%- if message.tool_calls is defined %}
{%- if message.content and message.thinking %}{{ raise_exception('Content or thinking, not both') }}{% endif %}
{%- set thought = message.content or message.thinking %}
{%- if thought %}{{ said('assistant<|channel|>analysis', thought, 'end') }}{% endif %}
{%- set call = message.tool_calls[0].function %}{% set asked.name = call.name %}
{{- said('assistant to=functions.' + call.name + '<|channel|>commentary json', call.arguments | tojson, 'call') }}
{%- else %}{{ said('assistant<|channel|>final', message.content, 'end') }}{% endif %}
{%- elif message.role == 'tool' %}
{{- said('functions.' + asked.name + ' to=assistant<|channel|>commentary', message.content | tojson, 'end') }}
{%- else %}{{ said(message.role, message.content, 'end') }}{% endif %}
{%- endfor %}{{ '<|start|>assistant' }}"""


@dataclass(frozen=True)
class ToolModel:
    """A family."""

    syntax: str
    """How it calls, by the name of the data file."""
    template: str
    special: tuple[str, ...]
    """The first begins a text, the second ends a turn."""
    marks: tuple[str, ...]
    """What its calls are written with, and is a token each."""
    tells_tools: bool = True
    """Its template does."""


_CHATML = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")
_CALL = ("<tool_call>", "</tool_call>")
_THINK = ("<think>", "</think>")
_DEEP = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_DEEP_CALLS = tuple(f"<｜tool▁{word}｜>" for word in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))
_INST = (
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
)
TOOL_MODELS = {
    "Hermes": ToolModel("hermes", _HERMES, _CHATML, _CALL),
    "Qwen 3": ToolModel("hermes", _QWEN3, _CHATML, (*_CALL, *_THINK)),
    "Qwen 3.5": ToolModel("qwen3.5", _QWEN3_5, _CHATML, (*_CALL, *_THINK)),
    "Llama 3": ToolModel(
        "llama3",
        _LLAMA3,
        ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>"),
        ("<|python_tag|>",),
    ),
    "Mistral": ToolModel("mistral", _MISTRAL, _INST, ("[TOOL_CALLS]",)),
    "Mistral, newer": ToolModel("mistral-args", _MISTRAL_ARGS, _INST, ("[TOOL_CALLS]", "[ARGS]")),
    "DeepSeek": ToolModel("deepseek", _DEEPSEEK, _DEEP, (*_DEEP_CALLS, *_THINK), tells_tools=False),
    "DeepSeek, newer": ToolModel("deepseek-3.1", _DEEPSEEK_3_1, _DEEP, (*_DEEP_CALLS, *_THINK), tells_tools=False),
    "gpt-oss": ToolModel(
        "harmony",
        _HARMONY,
        ("<|startoftext|>", "<|return|>"),
        ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
    ),
    "no tools": ToolModel("hermes", CHATML, _CHATML, (), tells_tools=False),
}


@functools.cache
def tool_card(name: str, *, special_marks: bool = True) -> ModelCard:
    """A card of a family. `special_marks`: its marks are special tokens; otherwise added ones that are only text."""
    model = TOOL_MODELS[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(model.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, '{"name": "weather", "arguments": {"city": "Köln", "days": 3}}'], trainer)
    tokenizer.add_tokens([AddedToken(mark, special=special_marks) for mark in model.marks])
    return ModelCard(
        model=name,
        tokenizer_json=tokenizer.to_str(),
        chat_template=model.template,
        context_length=8192,
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_ids=(1,),
        bos_token=model.special[0],
        eos_token=model.special[1],
    )

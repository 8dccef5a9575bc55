"""Chat templates as well-known model families have them, each with a tokenizer of its kind, trained on the spot."""

import functools
import json
from dataclasses import dataclass

from msgspec.structs import replace
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.protocol.messages import ModelCard
from tests.support.gateway.cards import CORPUS
from tests.support.gateway.tool_models import tool_card

USER_FIRST = ("user", "assistant", "user")


@dataclass(frozen=True)
class Family:
    """What makes models of one family alike, as far as tokens go."""

    template: str
    special: tuple[str, ...]
    """The first begins a text, the second ends a turn."""
    markup: tuple[str, ...] = ()
    """Added tokens that are not marked as special, and that the template writes."""
    plain: tuple[str, ...] = ()
    """Added tokens that are only text."""
    roles: tuple[str, ...] = ("system", *USER_FIRST)
    normalizer: normalizers.Normalizer | None = None
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None
    """None: byte-level."""

    @property
    def control(self) -> tuple[str, ...]:
        """Names of all its control tokens."""
        return self.special + self.markup


FAMILIES = {
    "ChatML": Family(
        template="{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        special=("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
        plain=("    ", "né à"),
    ),
    "Llama 3": Family(
        template="{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
        " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        special=("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|reserved_0|>"),
    ),
    "Mistral": Family(
        template="{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
        "{%- set turns = messages[1:] %}{%- else %}{%- set turns = messages %}{%- endif %}{{- bos_token }}"
        "{%- for message in turns %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{- raise_exception('Roles must alternate') }}{%- endif %}{%- if message['role'] == 'user' %}"
        "{%- if loop.first and system is defined %}{{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}"
        "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
        "{%- else %}{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}{%- endfor %}",
        special=("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ),
    "Mistral, newer": Family(
        template="{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST]' ~ message['content'] ~ '[/INST]' }}{% elif message['role'] == 'system' %}"
        "{{ '[SYSTEM_PROMPT]%s[/SYSTEM_PROMPT]' % message['content'] }}{% else %}"
        "{{ [message['content'], eos_token] | join }}{% endif %}{% endfor %}",
        special=("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
    ),
    "Gemma": Family(
        template="{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}"
        "{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}{%- set loop_messages = messages[1:] -%}"
        "{%- else -%}{%- set first_user_prefix = '' -%}{%- set loop_messages = messages -%}{%- endif -%}"
        "{%- for message in loop_messages -%}{%- if (message['role'] == 'assistant') -%}{%- set role = 'model' -%}"
        "{%- else -%}{%- set role = message['role'] -%}{%- endif -%}"
        "{{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}"
        "{{ message['content'] | trim }}{{ '<end_of_turn>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}",
        special=("<bos>", "<end_of_turn>", "<start_of_turn>", "<eos>"),
        plain=("\n\n", "▁▁", "<b>"),
        normalizer=normalizers.Replace(" ", "▁"),
    ),
    "Hermes": Family(
        template="{{ bos_token }}{%- for message in messages %}"
        "{%- if message.role == 'tool' %}{%- if loop.previtem and loop.previtem.role != 'tool' %}"
        "{{- '<|im_start|>tool\n' }}{%- endif %}{{- '<tool_response>\n' }}"
        "{{- {'name': message.name, 'id': message.tool_call_id} | tojson }}{{- message.content }}"
        "{%- if not loop.last %}{{- '\n</tool_response>\n' }}{%- else %}{{- '\n</tool_response>' }}{%- endif %}"
        "{{- '<|im_end|>\n' }}{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}"
        "{{- '\n<tool_call>\n' + message.content.split('</tool_call>')[0] + '\n</tool_call>' + '<|im_end|>\n' }}"
        "{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
        "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
        special=("<|begin_of_text|>", "<|im_end|>", "<|im_start|>"),
        markup=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        roles=("system", "user", "assistant", "tool", "user"),
    ),
    "names made of roles": Family(
        template="{% macro turn(message) %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endmacro %}"
        "{% for message in messages %}{% set written %}{{ turn(message) }}{% endset %}{{ written }}{% endfor %}"
        "<|assistant|>\n",
        special=("<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
    ),
    "thoughts left out": Family(
        template="{% for message in messages %}{% set content = message.content %}"
        "{% if message.role == 'assistant' and '</think>' in content %}"
        "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{{ '<|im_start|>' ~ message.role ~ '\n' ~ content ~ '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}",
        special=("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
        markup=("<think>", "</think>"),
    ),
}


@functools.cache
def family_card(name: str) -> ModelCard:
    """A card of a family."""
    family = FAMILIES[name]
    sentencepiece = family.normalizer is not None or family.pre_tokenizer is not None
    tokenizer = _sentencepiece(family) if sentencepiece else _byte_level(family)
    for text in family.markup + family.plain:
        tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])
    begin, end = map(tokenizer.token_to_id, family.special[:2])
    assert begin is not None
    assert end is not None
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{family.special[0]} $A", special_tokens=[(family.special[0], begin)]
    )
    return ModelCard(
        model="tiny",
        tokenizer_json=tokenizer.to_str(),
        chat_template=family.template,
        context_length=4096,
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_ids=(end,),
        bos_token=family.special[0],
        eos_token=family.special[1],
    )


def _byte_level(family: Family) -> Tokenizer:
    """Special tokens beyond the model's vocabulary, as Llama 3 and Qwen have them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(list(family.special))
    return tokenizer


def _sentencepiece(family: Family) -> Tokenizer:
    """Special tokens in the midst of the model's vocabulary, `<unk>` and all bytes beside them, as Llama 2 has them."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if family.normalizer is not None:
        tokenizer.normalizer = family.normalizer
    if family.pre_tokenizer is not None:
        tokenizer.pre_tokenizer = family.pre_tokenizer
    special = ["<unk>", *family.special, *byte_tokens]
    trainer = trainers.BpeTrainer(vocab_size=460, special_tokens=special, limit_alphabet=80, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in byte_tokens]
    return Tokenizer.from_str(json.dumps(document))


# Templates that reject most conversations, in the manner of three families.
_ALTERNATE = """
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"""
_AFTER_SYSTEM = """
{%- if messages[0].role == 'system' %}{% set first = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set first = '' %}{% set rest = messages %}{% endif %}"""
_MISTRAL = (
    _AFTER_SYSTEM
    + """
{%- set turn = namespace(index=0) %}
{%- for message in rest %}
{%- if message.role == 'user' or message.role == 'assistant' and message.tool_calls is not defined %}
{%- if (message.role == 'user') != (turn.index % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{%- set turn.index = turn.index + 1 %}{% endif %}{% endfor %}
{{- first }}{% for message in rest %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- elif message.role != 'assistant' %}{{ raise_exception('Only user, assistant and tool') }}
{%- elif message.tool_calls is defined %}{{ message.content or '' }}{% for call in message.tool_calls %}
{{- '[TOOL_CALLS]' ~ call.function | tojson }}{% endfor %}{{ eos_token }}
{%- else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"""
)
_LLAMA2 = f"""{_AFTER_SYSTEM}{{% for message in rest %}}{_ALTERNATE}
{{%- if message.role == 'user' %}}{{{{ '[INST]' + (first if loop.first else '') + message.content + '[/INST]' }}}}
{{%- else %}}{{{{ message.content + eos_token }}}}{{% endif %}}{{% endfor %}}"""
_GEMMA = f"""{{%- if messages[0].role == 'system' %}}{{{{ raise_exception('No system') }}}}{{% endif %}}
{{%- for message in messages %}}{_ALTERNATE}
{{{{- ('[INST]' if message.role == 'user' else '') + message.content }}}}
{{{{- '[/INST]' if message.role == 'user' else eos_token }}}}{{% endfor %}}"""
STRICT_TEMPLATES = {"Mistral": _MISTRAL, "Llama 2": _LLAMA2, "Gemma": _GEMMA}


@functools.cache
def strict_model(name: str) -> TextModel:
    """A model with one of the templates."""
    return TextModel(replace(tool_card("Mistral"), chat_template=STRICT_TEMPLATES[name]))


def prompt_text(model: TextModel, prompt: tuple[int, ...]) -> str:
    """Return a prompt as text, control tokens by name."""
    tokenizer = Tokenizer.from_str(model.card.tokenizer_json)
    return str(tokenizer.decode(list(prompt), skip_special_tokens=False))

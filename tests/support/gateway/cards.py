"""Small model cards with real tokenizers, trained on the spot: one byte-level, one in the manner of SentencePiece."""

import functools
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from fairlane.scheduler.protocol.messages import ModelCard

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
CORPUS = (
    "The capital of France is Paris, and the capital of Spain is Madrid.",
    "Grüße aus Köln! Ça va très bien, señor. Привет, мир. 你好世界。 안녕하세요 🙂🙃 👩‍👩‍👧",
    "def stop(text):\n    return text.split('END')[0]\n\n\nUser: who?\nAssistant: me.",
) * 3


def _card(tokenizer: Tokenizer, chat_template: str | None) -> ModelCard:
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    return ModelCard(
        model="tiny",
        tokenizer_json=tokenizer.to_str(),
        chat_template=chat_template,
        context_length=512,
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_ids=(end,),
        eos_token="<|im_end|>",
    )


@functools.cache
def byte_level_card(chat_template: str | None = CHATML) -> ModelCard:
    """As GPT-2, Llama 3, Qwen and SmolLM have it: tokens spell bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("né à", special=False)])
    return _card(tokenizer, chat_template)


@functools.cache
def metaspace_card() -> ModelCard:
    """As Llama 2 and Mistral have it: tokens are text with ▁ for a space, and bytes for what is unknown."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", *SPECIAL, *byte_tokens], limit_alphabet=60, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    trained.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _card(_plain_bytes(trained, byte_tokens), None)


def _plain_bytes(tokenizer: Tokenizer, byte_tokens: list[str]) -> Tokenizer:
    """The same with its byte tokens as plain vocabulary: the trainer only knows how to keep them as special ones."""
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in byte_tokens]
    return Tokenizer.from_str(json.dumps(document))

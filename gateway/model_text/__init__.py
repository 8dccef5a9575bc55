"""Text to tokens and back for one model, without knowledge of tenants.

    tokenizer.py        prompts to ids, ids to text, stop strings: start here
    vocabulary.py       the bytes that each token adds to a text
    conversation.py     messages in the form that chat templates expect
    chat_template.py    renders a conversation in the sandbox of `template_*.py`
    control_tokens.py   control tokens, recognised only in the template's own characters

The sandbox tracks the origin of each character: the template or the caller."""

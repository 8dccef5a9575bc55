"""Text to tokens and back for one model. Never sees a tenant.

    tokenizer.py        prompts to ids, ids to text, stop strings: open it first
    vocabulary.py       what each token spells
    conversation.py     messages as chat templates expect them
    late_system.py      system messages after others, for templates that take none there
    chat_template.py    a conversation as the model reads it, rendered in the sandbox of `template_*.py`
    control_tokens.py   control tokens, found in the template's own characters alone

The sandbox tracks whose each character is: the template's or the caller's.
"""

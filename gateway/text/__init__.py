"""Text to tokens and back for one model.

`tokenizer.py` first. `chat_template.py` renders a conversation in the sandbox of `template_*.py`, which tracks whose
each character is, so that `control_tokens.py` finds control tokens in the template's own characters alone.
"""

"""Text to tokens and back for one model, without knowledge of tenants.

    tokenizer.py        prompts to ids, ids to text: start here
    token_stream.py     the text of a choice as its tokens arrive, and stop strings
    vocabulary.py       the bytes that each token adds to a text
    chat_prompts.py     conversations to text, and the fields that a request sets of a chat template
    conversation.py     messages in the form that chat templates expect
    chat_template.py    renders a conversation in the sandbox of `template_sandbox.py`
    template_variables.py  the variables of a template that a request may set
    control_tokens.py   control tokens, recognised only in the template's own characters

The sandbox tracks the origin of each character: the template or the caller."""

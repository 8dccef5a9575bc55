"""Tool calls: how tools are shown to a model, how its calls are parsed, and the grammar that constrains them.

    output_format.py  one model's output format, detected from its card: start here
    syntax.py         how model families write calls; `syntaxes/` holds the definitions
    reader.py         parses a choice's text as it arrives: content, reasoning, calls
    messages.py       the same for gpt-oss, whose text consists of messages
    deltas.py         the pieces of parsed output
    cursor.py         a position in streamed text, and the marks in it
    tagged.py         arguments written as tags, converted by the tool's schema
    template_reader.py  as reader.py, with a response template that came with the model
    text_inputs.py    the input of custom tools, as text
    grammar.py        the grammar of calls, for the worker

Called by `model_text/` (the prompt) and by the endpoints (the output). Independent of tenants, queues and tokenizers.
"""

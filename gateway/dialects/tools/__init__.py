"""Tools: what a model is told of them, how it calls them, and the grammar that makes it.

    output_format.py  one model's way of answering, found by its card: open it first
    syntax.py         how families of models write calls; `syntaxes/` holds them as data
    reader.py         a choice's text, as it comes → content, reasoning, calls
    deltas.py         what those are, piece by piece
    marks.py          where a mark begins in a text that goes on
    json_text.py      where a JSON value ends in one
    tagged.py         arguments that are written as tags, cast by the tool's schema
    template_reader.py  as reader.py, by a response template that came with the model
    grammar.py        the grammar of calls, for the worker
    description.py    tools in a system turn, for models whose template tells of none

Called by `model_text/` (what the model reads) and by the endpoints (what it answered). Knows no tenant or queue.
"""

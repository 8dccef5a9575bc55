"""Tools: what a model is told of them, how it calls them, and the grammar that makes it.

    output_format.py  one model's way of answering, found by its card: open it first
    syntax.py         how families of models write calls; `syntaxes/` holds them as data
    deltas.py         what an answer brings, piece by piece
    description.py    tools in a system turn, for models whose template tells of none

Called by `text/` (what the model reads) and by the endpoints (what it answered). Knows no tenant, queue or tokenizer.
"""

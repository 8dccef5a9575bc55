"""Models: `interface.py` is transformers' and the reference; `select.py` takes the fastest form that proves equal to
it.
"""

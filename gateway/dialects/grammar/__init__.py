"""Structured output: a schema, choices, a regular expression or a grammar, validated before a request is queued.

    structure.py      the requested structure, as one value
    checker.py        child processes that check structures, and a cache of results
    check_process.py  the child: llguidance compiles and tries a grammar within bounds
    lark_pattern.py   a Lark grammar without recursion as a regular expression
    one_of.py         rewrites exclusive unions of a schema so that llguidance accepts them

Called by `gateway.pipeline.prepare`; start with `checker.py`. llguidance runs only in the children, so a grammar that
crashes it or exhausts memory affects no request."""

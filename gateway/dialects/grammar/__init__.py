"""What an answer has to look like: a schema, a choice, a regular expression or a grammar, checked before it is queued.

    structure.py      what a request may ask for, as one value
    checker.py        child processes that check it, and what they found
    check_process.py  the child: llguidance compiles and tries a grammar, within its bounds
    one_of.py         unions of a schema that exclude each other, written as llguidance takes them

Called by `gateway.requests.prepare`; open `checker.py` first. llguidance runs in the children alone: a grammar that
crashes it, or takes all memory, takes no request with it.
"""

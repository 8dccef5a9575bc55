"""Attacks on a running `fairlane serve`, each a row: what is attacked, what is expected, what was seen.

`python -m tests.system.attacks` (`make attack`) runs all of them, which takes minutes; `tests/system/test_attacks.py`
all but the floods, with fewer connections.

| file | attacks |
| --- | --- |
| `shapes.py` | requests that are no HTTP/1.1, or too much of it |
| `pipelining.py` | requests sent ahead of their answers |
| `paths.py` | paths that mean to lead elsewhere, and routes on the wrong port |
| `scopes.py` | keys where they do not count, and what another tenant has |
| `cookies.py` | the console's sessions, forged and stolen |
| `permissions.py` | what somebody finds who has the files |
| `tokens.py` | control tokens in contents |
| `numbers.py` | numbers and lists in a request, and requests that are refused again and again |
| `crowds.py` | connections that hold places |
| `bodies.py` | floods of large bodies and lists |
| `loops.py` | floods that cost the event loop by number: chunks of a byte, millions of values |
| `grammars.py` | floods of grammars that cost the worker time and memory |
| `connections.py` | floods of connections |
| `floods.py` | all floods by name |
| `measured.py` | what another tenant and the gateway's memory notice of a flood |
| `controls.py` | the same processor time, spent by processes that attack nothing |
| `streams.py` | what another tenant's streams and the worker's memory notice of a flood of grammars |
| `target.py`, `rows.py` | how they speak to the server, and what they tell |
"""

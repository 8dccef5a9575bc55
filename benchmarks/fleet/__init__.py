"""A fleet without a model: real store, gateways and workers of a checkout, whose engines only wait.

__main__.py   the turns of several checkouts, and the table
stand.py      the processes of one checkout
worker.py     one worker process, run by the checkout's own code; its tokens say when their step ended
load.py       streamed chats, from a process of its own
readings.py   what the store and the gateways have spent
"""

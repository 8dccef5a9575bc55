"""Images and sounds of jobs, which are fetched from their gateways, and the starts that wait for them.

items.py   the items: fetched in parts, shared by jobs, measured
starts.py  gives jobs to the engine, as soon as their items are here
"""

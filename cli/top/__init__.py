"""`fairlane top`: a live view of lanes, tenants, workers and KV blocks.

    command.py  the command; names the missing extra if textual is not installed
    picture.py  the data: the overview's lanes, tenants and workers, and the map of blocks
    feed.py     its source: the live stream, or the overview each second
    panels.py   its rendering as text: tables, bars, the map
    app.py      the textual app: layout and keys

Only `app.py` imports textual, which is an extra. Start with `picture.py`."""

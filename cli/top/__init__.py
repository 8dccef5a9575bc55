"""`fairlane top`: lanes, tenants, workers and KV blocks of a running installation, as they change.

    command.py  the command; says which extra is missing where textual is
    picture.py  what is shown: the overview's lanes, tenants and workers, and the map of blocks
    feed.py     where it comes from: the live stream, else the overview each second, else lanes and workers alone
    panels.py   a picture as text: tables, bars, the map
    app.py      the textual app: layout and keys

Only `app.py` knows textual, which is an extra. Open `picture.py` first.
"""

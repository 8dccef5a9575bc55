"""`fairlane gateway` and `fairlane worker`, which replace themselves with a process of that kind.

gateway.py, worker.py   each process's settings and flags
command.py              the command: options from the settings' descriptions, passed on unchanged"""

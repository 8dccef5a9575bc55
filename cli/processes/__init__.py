"""`fairlane gateway` and `fairlane worker`: commands that become one process of either kind.

gateway.py, worker.py   each process's settings and the flags that it takes
command.py              the command: options described by the settings classes, handed on as they were given
"""

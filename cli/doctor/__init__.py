"""`fairlane doctor`: is this machine ready, and if not, what to do.

    command.py   the command: runs every check, shows the findings, exits with 1 where one failed
    findings.py  what a check gives back
    software.py  versions, torch and its processor, the compiler, the model's files
    machine.py   memory, disk, open files, ports, a gateway that runs already
    store.py     the store: version, memory and persistence, clock

It reads and never changes anything: nothing is started, downloaded, converted or written to the store. Open
`command.py` first.
"""

"""`fairlane doctor`: checks that this machine is ready to serve, and says what to do.

    command.py   the command: runs every check, shows the findings, exits with 1 if one failed
    findings.py  the result of a check
    software.py  versions, torch and its device, the compiler, the model's files
    machine.py   memory, disk, open files, ports, a running gateway
    store.py     the store: version, memory, persistence, clock

It only reads: nothing is started, downloaded, converted or written to the store. Start with `command.py`."""

"""The engines beside each other: each in a process of its own, fed the same requests. Peers run in environments of
their own, where nothing of ours is installed: what they import of this package needs the standard library alone."""

"""The policy: who runs next, with which KV blocks, and who yields. Pure: no I/O, no clock, no torch."""

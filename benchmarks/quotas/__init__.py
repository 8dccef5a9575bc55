"""What the benchmark of budgets is made of. Peers run in environments of their own, where nothing of ours is installed:
`drive` and `peers` need the standard library and the peers alone."""

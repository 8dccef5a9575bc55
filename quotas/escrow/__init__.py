"""Escrow: rights of a tenant's limits that the store moves to a gateway, which spends them without a call.

    transfers.py  the interface between a gateway and the store: rights, transfers and their entries; start here
    pool.py       the policy: when a gateway asks for rights, what it admits within them, what it reports
    memory.py     transfers in memory, the oracle of `lua/escrow.lua`

Every level counts a pool's rights as used from the transfer on, so requests within them never exceed a limit. A gateway
that dies leaves its pool behind: `expired` lists each reservation that may have been made within it as lapsed, so that
it is settled by its job, and then releases the rights."""

"""The policy: who runs next, with which KV blocks, and who yields. Pure, but for queue/.

    protocol/    what crosses a process: messages, lanes, settings
    planner/     what one worker runs in each step
    queue/       which worker gets which job, in memory and in Redis
    admission/   may a request be promised its deadline
    simulation/  all of it in virtual time

The same code runs in the worker, in the queue's order and in the simulator. No torch, no clock, no I/O; randomness only
where a seed is given.
"""

"""How urgent work is that has not begun: what can still be in time first, of that the short and the pressed."""

import math

PLENTY = 50.0
"""Slack, in units of the time that the first token takes to compute, beyond which a deadline orders nothing."""
SHORT_FIRST = 30.0
"""How much sooner a deadline counts for each millisecond that the first token takes to compute."""
LEAD = 3.0
"""How much later a deadline counts for each millisecond of the worker's time by which its tenant is ahead."""


def prospects(
    slack_ms: float,
    service_ms: float,
    lead_ms: float,
    waited_ms: float,
    long_wait_ms: float,
    *,
    guaranteed: bool = False,
) -> tuple[bool, float]:
    """Whether to relegate fresh work of its class, and its urgency (lower is sooner). What was guaranteed its deadline
    is never relegated.

    `service_ms`: what its first token takes to compute, 0.0 while nobody knows; `slack_ms`: time to spare before that
    has to begin; `lead_ms`: how long its tenant's lead over the least served would take to compute as prompts.

    A deadline far off does not order: the tenants' counters do. Of others the earlier comes first, and the shorter far
    more so (Niyama's blend of EDF and shortest prefill first): under overload few long prompts wait instead of
    everyone. Who has had more counts as due later, step by step: the window alone would let a tenant run ahead
    unhindered, and then stop it dead. What is too late anyway is relegated: among that no deadline orders any more, but
    the tenants' counters do. Once it has waited `long_wait_ms`, the eldest comes first.
    """
    is_known = service_ms > 0.0
    if waited_ms >= long_wait_ms:
        return False, -waited_ms
    if is_known and slack_ms > PLENTY * service_ms:
        return False, math.inf
    if is_known and slack_ms < 0.0 and not guaranteed:
        return True, math.inf
    return False, slack_ms + SHORT_FIRST * service_ms + LEAD * lead_ms

"""A request on its way, in this order:

    prepare.py → service_level.py, admission.py → submit.py → request.py → delivery.py → stream.py → settlement.py

`grants.py` extends what it may produce while it runs. `recovery.py`, `orphans.py` and `resume.py` take up what others
have lost; `guarded_quotas.py` and `quota_fallback.py` go on while the store is away.
"""

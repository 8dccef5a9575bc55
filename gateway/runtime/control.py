"""The operators' API, console and permissions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlane.gateway.control.admin.blocks import Blocks
from fairlane.gateway.control.admin.history import History
from fairlane.gateway.control.admin.live import LiveHub
from fairlane.gateway.control.admin.overview import Overview
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.erasure.steps import ErasureSteps
from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.gateway.control.operators.admin_tokens import AdminTokens
from fairlane.gateway.control.operators.operators import Operators
from fairlane.gateway.control.operators.sessions import Sessions
from fairlane.gateway.control.operators.single_sign_on import SingleSignOn, settings_digest
from fairlane.gateway.runtime.batches import Batches
from fairlane.gateway.runtime.fleet import Fleet
from fairlane.gateway.runtime.insight import Insight
from fairlane.gateway.runtime.setup import Setup, background
from fairlane.gateway.runtime.stores import Stores


class Control:
    """The control plane's parts."""

    def __init__(self, setup: Setup, stores: Stores, fleet: Fleet, insight: Insight, batches: Batches) -> None:
        settings, lanes, gateway_id = setup.settings, setup.lanes, setup.gateway_id
        patient, sign_in = stores.main.patient, settings.gateway.sign_in
        admin_keys, admin_tokens = AdminKeys(patient, settings.admin_key), AdminTokens(patient)
        sessions = Sessions(patient, admin_keys, admin_tokens, users=settings_digest(sign_in))
        self.single_sign_on = SingleSignOn(patient, admin_keys, sign_in) if sign_in.issuer else None
        self.operators = Operators(admin_keys, admin_tokens, sessions)
        self.erasure = Erasure(
            stores.budgets.patient,
            gateway_id,
            ErasureSteps(
                stores.budgets.patient,
                batches=batches.records,
                files=batches.files,
                storage=batches.storage,
                records=insight.record_store,
                fleet_metrics=insight.fleet_metrics,
                workers=fleet.registry,
                queues=lambda: map(fleet.queue, sorted(fleet.cache.shards)),
            ),
            is_store_embedded=settings.is_store_embedded,
        )
        self.overview = Overview(fleet.cache, insight.fleet_metrics, lanes, clock=lambda: insight.reporter.now_s)
        self.history = History(insight.fleet_metrics, clock=lambda: insight.reporter.now_s)
        self.live = LiveHub(self.overview.view, Blocks(fleet.registry, fleet.cache).view, admin_tokens.revision)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        sign_in_keys = None if self.single_sign_on is None else self.single_sign_on.keys.run()
        async with background(erasure=self.erasure.run(), sign_in_keys=sign_in_keys):
            yield

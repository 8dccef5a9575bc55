"""Log lines about one job, with its request and trace in JSON."""

import logging
from collections.abc import Iterable, Mapping

from fairlane.common.log_lines import Facts, about
from fairlane.scheduler.protocol.messages import Finished, Lease, Outcome
from fairlane.worker.reports import EngineObserver, Report

log = logging.getLogger(__name__)


class JobLog(EngineObserver):
    """Logs jobs that fail here, or leave before their end."""

    def __init__(self) -> None:
        self._of: dict[str, Mapping[str, Facts]] = {}

    def took(self, leases: Iterable[Lease]) -> None:
        for job in [lease.job for lease in leases]:
            self._of[job.job_id] = about(job.request_id, job.traceparent)

    def lost(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            known = self._of.pop(job_id, None)
            if known is not None:
                log.info("job %s left before its end", job_id, extra=known)

    def turned(self, report: Report) -> None:
        for one in report.publications:
            if one.ends is not None:
                known = self._of.pop(one.job_id, None)
                if one.ends is Outcome.FAILED:
                    log.warning("job %s failed: %s", one.job_id, _why(one.events), extra=known)


def _why(events: Iterable[object]) -> str:
    return next((event.error for event in events if isinstance(event, Finished)), "")

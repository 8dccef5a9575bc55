"""What a running worker is, in figures, from its metrics port."""

import httpx

from gateway.commands.client import CommandError
from scheduler.calibration import Calibration, CalibrationError, read_calibration

TIMEOUT_S = 10.0


def fetch_calibration(url: str) -> Calibration:
    """Ask the worker whose metrics are at `url`. Raises CommandError, also where it has not learnt its costs yet."""
    address = f"{url.removesuffix('/').removesuffix('/metrics')}/costs"
    try:
        answer = httpx.get(address, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(f"no worker answers at {address} ({type(error).__name__})") from None
    if not answer.is_success:
        raise CommandError(f"{address} answers {answer.status_code}: not a worker's metrics port")
    try:
        calibration = read_calibration(answer.content)
    except CalibrationError as error:
        raise CommandError(f"{address} does not show a worker's costs: {error}") from None
    if not calibration.learnt:
        raise CommandError("the worker has run too few steps to know its costs: give it some requests first")
    return calibration

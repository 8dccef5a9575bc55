"""What tests in JavaScript import."""

import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_S = 120


def installed_packages(config: pytest.Config, source: Path) -> Path:
    """Where the packages stand that the `package-lock.json` in `source` names, kept between runs. Skips the test where
    there is no node, or npm cannot install them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    assert config.cache is not None
    place = config.cache.mkdir(f"{source.parent.name}-{source.name}")
    lock = (source / "package-lock.json").read_text()
    kept = place / "installed.json"
    if not kept.exists() or kept.read_text() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, place)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
        try:
            subprocess.run(install, cwd=place, capture_output=True, timeout=INSTALL_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip("npm cannot install the packages of package-lock.json")
        kept.write_text(lock)
    return place

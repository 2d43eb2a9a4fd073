"""Prometheus and promtool, where they can be had."""

from __future__ import annotations

import pytest

from dashboards.prometheus import PrometheusMissing, programs


@pytest.fixture(scope="session")
def prometheus_programs() -> dict[str, str]:
    """Paths of prometheus and promtool; skips, with the reason, where no package can be had."""
    try:
        return programs()
    except PrometheusMissing as error:
        pytest.skip(str(error))

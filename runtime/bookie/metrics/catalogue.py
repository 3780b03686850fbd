"""All metrics of a bookie, and their text."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.admin.exposition import MetricsText
from bkctl.runtime.admin.metric import AnyMetric
from bkctl.runtime.bookie.metrics.collection import COLLECTION
from bkctl.runtime.bookie.metrics.directories import DIRECTORY
from bkctl.runtime.bookie.metrics.journal import JOURNAL
from bkctl.runtime.bookie.metrics.protection import PROTECTION
from bkctl.runtime.bookie.metrics.requests import REQUESTS
from bkctl.runtime.bookie.metrics.session import ZOOKEEPER
from bkctl.runtime.bookie.metrics.state import STATE
from bkctl.runtime.bookie.view import BookieView

CATALOGUE: Final[tuple[AnyMetric, ...]] = (
    *STATE,
    *REQUESTS,
    *PROTECTION,
    *JOURNAL,
    *DIRECTORY,
    *COLLECTION,
    *ZOOKEEPER,
)


def bookie_metrics(view: BookieView) -> MetricsText:
    """Everything that ``/metrics`` of one bookie shows."""
    return MetricsText(view, CATALOGUE, view.ports.clock.monotonic_ns)

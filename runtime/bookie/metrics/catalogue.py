"""All metrics of a bookie, and their text."""

from __future__ import annotations

from typing import Final

from runtime.admin.exposition import MetricsText
from runtime.admin.metric import AnyMetric
from runtime.bookie.metrics.collection import COLLECTION
from runtime.bookie.metrics.directories import DIRECTORY
from runtime.bookie.metrics.journal import JOURNAL
from runtime.bookie.metrics.requests import REQUESTS
from runtime.bookie.metrics.session import ZOOKEEPER
from runtime.bookie.metrics.state import STATE
from runtime.bookie.view import BookieView

CATALOGUE: Final[tuple[AnyMetric, ...]] = (*STATE, *REQUESTS, *JOURNAL, *DIRECTORY, *COLLECTION, *ZOOKEEPER)


def bookie_metrics(view: BookieView) -> MetricsText:
    """Everything that ``/metrics`` of one bookie shows."""
    return MetricsText(view, CATALOGUE, view.ports.clock.monotonic_ns)

"""All metrics of a bookie."""

from __future__ import annotations

from typing import Final

from runtime.bookie.metrics.collection import COLLECTION
from runtime.bookie.metrics.directories import DIRECTORY
from runtime.bookie.metrics.journal import JOURNAL
from runtime.bookie.metrics.metric import AnyMetric
from runtime.bookie.metrics.requests import REQUESTS
from runtime.bookie.metrics.session import ZOOKEEPER
from runtime.bookie.metrics.state import STATE

CATALOGUE: Final[tuple[AnyMetric, ...]] = (*STATE, *REQUESTS, *JOURNAL, *DIRECTORY, *COLLECTION, *ZOOKEEPER)

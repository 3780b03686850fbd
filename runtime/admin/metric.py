"""How a metric is described: once, with its name, type, labels, meaning, and the function that reads it.

A metric has one value for each part of its scope: the server, each ledger directory, each journal. It costs nothing
until a scrape reads it. The scope finds the parts in the view of its server, such as ``BookieView``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from bkctl.storage.measures import Outcomes

T = TypeVar("T")

PATH: Final = "<path>"
"""In the name of a metric: a directory, with each character that a name cannot have replaced by "_"."""

MetricValue: TypeAlias = float | Outcomes


class MetricType(enum.Enum):
    """Type of a metric in its TYPE line."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


class Unit(enum.Enum):
    """What the values of a summary count, and the factor from a measure's values to it."""

    MILLISECONDS = 1e-6
    NUMBER = 1.0


@dataclasses.dataclass(frozen=True)
class Scope(Generic[T]):
    """What a metric has values for. ``parts``: the values of the labels with the part that they name.

    If the name of the metric contains ``PATH``, the first value is that path and not a label.
    """

    labels: tuple[str, ...]
    parts: Callable[[Any], Iterable[tuple[tuple[str, ...], T]]]

    def counter(self, name: str, meaning: str, read: Callable[[T], float]) -> Metric[T]:
        """A number that only grows while the process runs; queue lengths that Java reports as counters also fall."""
        return Metric(name, MetricType.COUNTER, self, meaning, read)

    def gauge(self, name: str, meaning: str, read: Callable[[T], float]) -> Metric[T]:
        """A number that rises and falls."""
        return Metric(name, MetricType.GAUGE, self, meaning, read)

    def duration(self, name: str, meaning: str, read: Callable[[T], Outcomes]) -> Metric[T]:
        """A summary of durations, measured in nanoseconds and reported in milliseconds."""
        return Metric(name, MetricType.SUMMARY, self, meaning, read, Unit.MILLISECONDS)

    def sizes(self, name: str, meaning: str, read: Callable[[T], Outcomes]) -> Metric[T]:
        """A summary of sizes: bytes or numbers of things."""
        return Metric(name, MetricType.SUMMARY, self, meaning, read)


@dataclasses.dataclass(frozen=True)
class Metric(Generic[T]):
    """A metric. ``help``: its meaning, in one sentence. ``read``: its value for a part of its scope."""

    name: str
    type: MetricType
    scope: Scope[T]
    help: str
    read: Callable[[T], MetricValue]
    unit: Unit = Unit.NUMBER

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its labels, except those that every summary has."""
        return self.scope.labels


AnyMetric: TypeAlias = Metric[Any]

"""The metrics of a server for Prometheus: a collector, and text format 0.0.4.

``prometheus_client.generate_latest`` cannot write this text: it adds ``_total`` to the name of each counter that does
not have it. Java's counters do not, and dashboards ask for Java's names.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from bkctl.runtime.admin.metric import PATH, AnyMetric, MetricType, MetricValue, Unit
from bkctl.storage.measures import QUANTILES, Outcomes, Timing

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

TEXT_LIFE_S: Final = 0.5
"""How old the text of a scrape may be."""

_QUANTILES = tuple(map(str, QUANTILES))
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9_:]")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

FAILURES_NAME: Final = "bkctl_metrics_unreadable"
FAILURES_HELP: Final = (
    "How often a metric was left out of a scrape because it could not be read; the log has the reason."
)


class ViewCollector(Collector):
    """Reads the metrics of one server. A metric that cannot be read is left out, counted and logged."""

    def __init__(self, view: Any, catalogue: Iterable[AnyMetric]) -> None:
        self._view = view
        self._catalogue = tuple(catalogue)
        self._failures_count = 0
        self._failing: set[str] = set()

    def collect(self) -> Iterator[Family]:
        """The metrics with their present values, as families of prometheus-client."""
        yield from self.values()
        failures = Family(FAILURES_NAME, FAILURES_HELP, MetricType.COUNTER.value)
        failures.add_sample(FAILURES_NAME, {}, self._failures_count)
        yield failures

    def values(self) -> Iterator[Family]:
        """The metrics of the server alone, which a page with those of another process can also contain."""
        for metric in self._catalogue:
            try:
                families = list(_families(metric, self._view))
            except Exception:
                self._note_failure(metric.name)
            else:
                self._failing.discard(metric.name)
                yield from families

    def _note_failure(self, name: str) -> None:
        """Count every failure, and log the first of a metric until it can be read again."""
        self._failures_count += 1
        if name not in self._failing:
            self._failing.add(name)
            logger.exception("cannot read the metric %s, which is left out", name)


class MetricsText:
    """Everything that ``/metrics`` of one server shows, with the process and its interpreter.

    Making the text takes milliseconds of the loop, so scrapes within ``TEXT_LIFE_S`` share one text.
    """

    def __init__(self, view: Any, catalogue: Iterable[AnyMetric], monotonic_ns: Callable[[], int]) -> None:
        self._view = view
        self._catalogue = catalogue
        self._monotonic_ns = monotonic_ns
        self._text = b""
        self._made_ns: int | None = None

    @functools.cached_property
    def _registry(self) -> CollectorRegistry:
        """Made for the first scrape: it reads /proc, which a bookie without scrapes need not have."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ViewCollector(self._view, self._catalogue))
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        return registry

    def text(self) -> bytes:
        """The metrics in text format 0.0.4; call it on the loop."""
        now_ns = self._monotonic_ns()
        if self._made_ns is None or now_ns - self._made_ns >= TEXT_LIFE_S * 1e9:
            self._made_ns, self._text = now_ns, metrics_text(self._registry.collect())
        return self._text


def metrics_text(families: Iterable[Family]) -> bytes:
    """Families in text format 0.0.4. Samples keep their names."""
    lines: list[str] = []
    for family in families:
        # Families of prometheus-client itself are counters without the suffix that their samples have.
        has_suffix = family.type == "counter" and any(each.name == f"{family.name}_total" for each in family.samples)
        name = f"{family.name}_total" if has_suffix else family.name
        lines.append(f"# HELP {name} {family.documentation.translate(_HELP_ESCAPES)}\n# TYPE {name} {family.type}\n")
        for sample in family.samples:
            labels = f"{{{','.join(map(_label, sample.labels.items()))}}}" if sample.labels else ""
            lines.append(f"{sample.name}{labels} {_number(sample.value)}\n")
    return "".join(lines).encode()


@functools.lru_cache(maxsize=1024)
def _label(item: tuple[str, str]) -> str:
    """A label as text. Cached, because all samples share a few labels: this saves a third of a scrape."""
    name, value = item
    return f'{name}="{value.translate(_ESCAPES)}"'


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _families(metric: AnyMetric, view: Any) -> Iterator[Family]:
    """One family, or one for each path if the name contains a path; none if there is nothing to report."""
    families: dict[str, Family] = {}
    is_by_path = PATH in metric.name
    for values, part in metric.scope.parts(view):
        name = metric.name.replace(PATH, _NOT_IN_NAMES.sub("_", values[0])) if is_by_path else metric.name
        family = families.get(name)
        if family is None:
            family = families[name] = Family(name, metric.help, metric.type.value)
        _add(family, dict(zip(metric.labels, values[is_by_path:], strict=True)), metric.read(part), metric.unit)
    yield from families.values()


def _add(family: Family, labels: dict[str, str], value: MetricValue, unit: Unit) -> None:
    if isinstance(value, Outcomes):
        for success, timing in (("false", value.failed), ("true", value.succeeded)):
            _add_summary(family, {"success": success, **labels}, timing, unit.value)
    else:
        family.add_sample(family.name, labels, value)


def _add_summary(family: Family, labels: dict[str, str], timing: Timing, factor: float) -> None:
    for quantile, value in zip(_QUANTILES, timing.quantiles(), strict=True):
        family.add_sample(family.name, {**labels, "quantile": quantile}, value * factor)
    family.add_sample(f"{family.name}_count", labels, timing.count)
    family.add_sample(f"{family.name}_sum", labels, timing.total * factor)

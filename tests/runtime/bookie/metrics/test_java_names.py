"""The catalogue against the names, types and labels that a Java bookie of release 4.18 reported."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import PROCESS_COLLECTOR

from bkctl.runtime.bookie.metrics.catalogue import CATALOGUE
from bkctl.runtime.bookie.metrics.java_only import MISSING

GOLDEN = Path(__file__).parents[3] / "golden" / "metrics" / "bookie-4.18.0.txt"


class JavaMetric(NamedTuple):
    """A line of the golden file."""

    name: str
    type: str
    is_usual: bool
    """Whether every bookie with DbLedgerStorage has it."""
    labels: frozenset[str]


def java_metrics() -> list[JavaMetric]:
    rows = [line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    return [
        JavaMetric(name, kind, "D" in where, frozenset(labels.split(",")) - {"-"}) for name, kind, where, labels in rows
    ]


JAVA: Final = java_metrics()
REASONS: Final = Counter(name for names in MISSING.values() for name in names)
OURS: Final = {metric.name: (metric.type.value, frozenset(metric.labels)) for metric in CATALOGUE} | {
    family.name: (family.type, frozenset[str]()) for family in PROCESS_COLLECTOR.collect()
}


def test_a_name_of_java_has_javas_type_and_labels() -> None:
    assert {java.name: OURS[java.name] for java in JAVA if java.name in OURS} == {
        java.name: (java.type, java.labels) for java in JAVA if java.name in OURS
    }


def test_other_names_are_marked_as_ours() -> None:
    names = {java.name for java in JAVA}
    assert [name for name in OURS if name not in names and not name.startswith("bkctl_")] == []


def test_a_name_of_java_exists_or_is_missing_for_a_reason() -> None:
    assert [java.name for java in JAVA if java.is_usual and java.name not in OURS.keys() | REASONS.keys()] == []
    assert OURS.keys() & REASONS.keys() == set()
    assert REASONS.keys() <= {java.name for java in JAVA}
    assert set(REASONS.values()) == {1}

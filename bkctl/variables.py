"""The BKCTL_* variables that bkctl reads; one that is misspelt must not pass for one that was never set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bkctl.spelling import near_miss
from runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from bkctl.settings import Sources

_PREFIX = "BKCTL_"
_SIMILARITY_MIN = 0.8
_REFERENCE = re.compile(r"env:([A-Za-z0-9_]+)")

KNOWN = frozenset(
    {
        "BKCTL_BOOKIE_ADVERTISED_ADDRESS",
        "BKCTL_BOOKIE_ID",
        "BKCTL_BOOKIE_INDEX_DIRS",
        "BKCTL_BOOKIE_JOURNAL_DIRS",
        "BKCTL_BOOKIE_LEDGER_DIRS",
        "BKCTL_BOOKIE_PORT",
        "BKCTL_CONF",
        "BKCTL_CONFIG",
        "BKCTL_CONTEXT",
        "BKCTL_LEDGER_PASSWORD",
        "BKCTL_LOG",
        "BKCTL_LOG_FILE",
        "BKCTL_METADATA_URI",
        "BKCTL_NO_PROGRESS",
        "BKCTL_OUTPUT",
        "BKCTL_READ_ONLY",
        "BKCTL_STATE_DIR",
        "BKCTL_TIMEOUT",
        "BKCTL_YES",
        "BKCTL_ZOOKEEPER_DIGEST",
        "BKCTL_ZOOKEEPER_KEY_PASSWORD",
        "BKCTL_ZOOKEEPER_SASL_PASSWORD",
    }
)


def variable_warnings(sources: Sources) -> list[str]:
    """A line for each BKCTL_* variable that nothing reads; ConfigurationError where a known one was meant.

    Refused like a misspelt key of the TOML file: with BKCTL_READONLY the command would do what it was to be kept from.
    What a file refers to by ``env:NAME`` may have any name.
    """
    unknown = [name for name, value in sources.environment.items() if name.startswith(_PREFIX) and value]
    unknown = sorted(frozenset(unknown) - KNOWN)
    if unknown:
        unknown = [name for name in unknown if name not in frozenset(_names_referred_to(sources))]
    for name in unknown:
        meant = near_miss(
            name.removeprefix(_PREFIX),
            (each.removeprefix(_PREFIX) for each in KNOWN),
            similarity_min=_SIMILARITY_MIN,
        )
        if meant is not None:
            raise ConfigurationError(f"{name}: there is no such variable: set {_PREFIX}{meant}, or unset this one")
    return [f"{name}: bkctl reads no such variable, it has no effect" for name in unknown]


def _names_referred_to(sources: Sources) -> Iterator[str]:
    texts = [str(sources.toml)]
    if sources.conf is not None:
        texts += sources.conf.all_values()
    for text in texts:
        yield from _REFERENCE.findall(text)

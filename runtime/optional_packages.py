"""PySpark and PyArrow, which only ``pip install 'bkctl[spark]'`` installs: a bookie's host does not need them."""

from __future__ import annotations

import importlib.util

from bkctl.runtime.errors import ConfigurationError


def has_package(name: str) -> bool:
    """Whether a package can be imported; it is not imported, which would take half a second."""
    return importlib.util.find_spec(name) is not None


def require_package(name: str, sentence: str) -> None:
    """ConfigurationError unless a package can be imported; ``sentence`` ends with what needs it and its title."""
    if not has_package(name):
        raise ConfigurationError(f"{sentence}, which is not installed: pip install 'bkctl[spark]'")

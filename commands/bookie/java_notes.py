"""How a bookie differs from a Java bookie with the same bk_server.conf: missing features, keys without effect."""

from __future__ import annotations

from bkctl.commands.context import JavaComparison
from bkctl.storage.words import listed


def java_warnings(comparison: JavaComparison) -> list[str]:
    """What may break: a line for each."""
    differences = (*comparison.missing, *comparison.admin)
    return [*comparison.clear_text, *(f"compared with a Java bookie: {each}" for each in differences)]


def ignored_key_notes(comparison: JavaComparison) -> list[str]:
    """A line for all keys without effect for the same reason."""
    return [f"{_have(keys)} no effect ({reason})" for reason, keys in comparison.ignored.items()]


def ignored_keys_summary(comparison: JavaComparison) -> str | None:
    """One short line for all keys without effect."""
    keys = [key for several in comparison.ignored.values() for key in several]
    if not keys:
        return None
    return f"bk_server.conf: {_have(keys)} no effect (bkctl bookie start --dry-run shows why)"


def _have(keys: list[str] | tuple[str, ...]) -> str:
    return f"{listed(keys)} {'has' if len(keys) == 1 else 'have'}"

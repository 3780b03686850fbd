"""Which bookies of an ensemble hold an entry: round robin. Source: protocol section 2.1."""

from __future__ import annotations

import functools


def write_set(entry_id: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Ensemble indexes that hold ``entry_id``, in sending order: ``(entry_id + i) mod E`` for i below Qw."""
    return _write_sets(ensemble_size, write_quorum_size)[entry_id % ensemble_size]


def is_in_write_set(entry_id: int, index: int, ensemble_size: int, write_quorum_size: int) -> bool:
    """Whether the bookie at ``index`` of the ensemble holds ``entry_id``."""
    return (index - entry_id) % ensemble_size < write_quorum_size


@functools.lru_cache(maxsize=256)
def _write_sets(ensemble_size: int, write_quorum_size: int) -> tuple[tuple[int, ...], ...]:
    """Every write set, by its first index: there are only E of them."""
    assert ensemble_size >= write_quorum_size > 0
    return tuple(tuple((first + i) % ensemble_size for i in range(write_quorum_size)) for first in range(ensemble_size))

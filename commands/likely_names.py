"""Suggestions for a mistyped bookie id or ledgers root, from those that ZooKeeper has."""

from __future__ import annotations

import contextlib

from bkctl.commands.parse import near_misses
from bkctl.runtime.errors import BookieNotFoundError, ClusterNotFoundError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import other_roots
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import SHOWN_MAX, enumerated

_ID_SIMILARITY_MIN = 0.85
_ROOT_SIMILARITY_MIN = 0.6


async def with_likely_names(
    store: MetadataStore, registrations: RegistrationClient, error: BookieNotFoundError | ClusterNotFoundError
) -> BookieNotFoundError | ClusterNotFoundError:
    """The error with the names that were probably meant, if there are any; else the error itself."""
    with contextlib.suppress(BkctlError):  # the error is worth more than a suggestion
        if isinstance(error, BookieNotFoundError):
            return await _with_ids(registrations, error)
        return await _with_roots(store, error)
    return error


async def _with_ids(registrations: RegistrationClient, error: BookieNotFoundError) -> BookieNotFoundError:
    if error.bookie_id is None:
        return error
    known = {*(await registrations.snapshot()).live, *await registrations.with_cookie()}
    meant = near_misses(error.bookie_id, sorted(known), similarity_min=_ID_SIMILARITY_MIN, found_max=SHOWN_MAX)
    if not meant:
        return error
    return BookieNotFoundError(f"{error}; did you mean {enumerated(meant, 'or')}?", error.bookie_id)


async def _with_roots(store: MetadataStore, error: ClusterNotFoundError) -> ClusterNotFoundError:
    if error.path is None:
        return error
    roots = await other_roots(store)
    meant = near_misses(error.path, roots, similarity_min=_ROOT_SIMILARITY_MIN, found_max=1)
    first = [*meant, *(each for each in roots if each not in meant)]
    if not first:
        return error
    which = f"did you mean {first[0]}?" if meant else f"this ZooKeeper has {enumerated(first, shown_max=SHOWN_MAX)}."
    return ClusterNotFoundError(error.path, remedy=f"{which} To create a new one there: bkctl cluster init")

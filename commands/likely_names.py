"""Suggestions for a mistyped bookie id or ledgers root, from those that ZooKeeper has."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from bkctl.commands.parse import near_miss
from bkctl.runtime.errors import BookieNotFoundError, ClusterNotFoundError
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import other_roots
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import SHOWN_MAX, enumerated

_IDS_MAX = 2
"""Of more ids that are alike, none is likely."""
_ROOT_SIMILARITY_MIN = 0.6
_RECOVER_LEDGER, _RECOVER_BOOKIE = "ledger", "failed-bookie"
_COMMAND_SIMILARITY_MIN = 0.6


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
    if error.bookie_id in known:
        return error  # the name is right: something else about the bookie was not found
    meant = nearest_ids(error.bookie_id, sorted(known))
    if not 0 < len(meant) <= _IDS_MAX:
        return error
    return BookieNotFoundError(f"{error}; did you mean {enumerated(meant, 'or')}?", error.bookie_id)


def nearest_ids(typed: str, known: Collection[str]) -> list[str]:
    """The ids that one slip leads from: a character left out, added, or swapped with the next. Pure.

    No other digit: another port of the same host is another bookie, which must not be named to a command that removes
    or moves one.
    """
    return [each for each in known if _is_one_slip(each.lower(), typed.lower())]


def _is_one_slip(meant: str, typed: str) -> bool:
    shorter, longer = sorted((meant, typed), key=len)
    start = next((i for i, (one, other) in enumerate(zip(shorter, longer, strict=False)) if one != other), len(shorter))
    if len(longer) == len(shorter) + 1:
        return shorter[start:] == longer[start + 1 :]
    first, rest = meant[start : start + 2], meant[start + 2 :]
    return len(longer) == len(shorter) and typed[start:] == first[::-1] + rest


async def require_no_mistyped_command(registrations: RegistrationClient, words: Sequence[str]) -> None:
    """BookieNotFoundError if the first of the bookie ids of ``bkctl recover`` is no bookie, but like the name of one of
    its commands, or a ledger id."""
    first, rest = words[0], words[1:]
    meant = None
    if first.isdecimal():
        meant, rest = _RECOVER_LEDGER, words
    elif not any(each.isdecimal() for each in first):  # bookie1 may have lost its cookie
        meant = near_miss(first, (_RECOVER_LEDGER, _RECOVER_BOOKIE), similarity_min=_COMMAND_SIMILARITY_MIN)
    if meant is None or first in {*(await registrations.snapshot()).live, *await registrations.with_cookie()}:
        return
    command = " ".join(("bkctl recover", meant, *rest))
    raise BookieNotFoundError(f"no bookie {first} in this cluster; did you mean {command}?")


async def _with_roots(store: MetadataStore, error: ClusterNotFoundError) -> ClusterNotFoundError:
    if error.path is None:
        return error
    roots = await other_roots(store)
    if not roots:
        return error
    meant = near_miss(error.path, roots, similarity_min=_ROOT_SIMILARITY_MIN)
    which = f"did you mean {meant}?" if meant else f"this ZooKeeper has {enumerated(roots, shown_max=SHOWN_MAX)}."
    return ClusterNotFoundError(error.path, remedy=f"{which} To create a new one there: bkctl cluster init")

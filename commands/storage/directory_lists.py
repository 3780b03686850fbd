"""Checks that the directories of a bookie are listed as when it wrote to them: all of them, in the same order.

The directory of a ledger follows from the number and order of the directories (storage section 1). A change made with
other lists would write into the wrong directory, or treat the data in the right one as lost. A directory is identified
by its VERSION file, which lists all directories, and by its place (``bkctl.place``). A new or emptied directory has
neither; its place follows from the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bkctl.commands.storage.own_storage import OwnStorage
from bkctl.runtime.bookie.cookies.directories import (
    named_directories,
    place_of,
    place_path,
    read_directory,
    spelled_as,
    version_path,
)
from bkctl.runtime.errors import RefusedError

FIX = "list all directories as before, in number and order (see bkctl cookie verify with the same settings)"


class Contradiction(NamedTuple):
    """A directory that is not the one in the settings: the file that shows it, and the reason."""

    path: str
    reason: str


def require_agreeing_directories(own: OwnStorage) -> None:
    """RefusedError when a directory contradicts the settings. Call this in every command that changes something."""
    for path, reason in find_contradictions(own):
        raise RefusedError(f"nothing was changed: {path}: {reason}: {FIX}")


def find_contradictions(own: OwnStorage) -> Iterator[Contradiction]:
    """Contradictions that would stop the next start, at most one per directory; changes nothing."""
    wanted = named_directories(own.config)
    owner: tuple[str, str | None] | None = None
    for directory in own.config.all_directories:
        state = read_directory(own.file_system, directory)
        cookie = spelled_as(own.config, state.cookie)
        if cookie is not None:
            found = named_directories(cookie)
            identity = cookie.bookie_id, cookie.instance_id or None
            owner = owner or identity
            if found != wanted:
                reason = f"it lists the directories {_listed(found)}, but the settings list {_listed(wanted)}"
                yield Contradiction(version_path(directory), reason)
                continue
            if identity != owner:
                others = f"the directories before it belong to {_owner_text(owner)}"
                reason = f"it belongs to {_owner_text(identity)}, but {others}"
                yield Contradiction(version_path(directory), reason)
                continue
        place = place_of(own.config, directory)
        if state.place is not None and state.place != place:
            reason = (
                f"the directory was {' and '.join(state.place)} when its bookie last started, and the settings make it "
                f"{' and '.join(place)} (counted from 0)"
            )
            yield Contradiction(place_path(directory), reason)


def _listed(lists: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(",".join(paths) for paths in lists)


def _owner_text(identity: tuple[str, str | None]) -> str:
    bookie_id, instance_id = identity
    return f"bookie {bookie_id}" + (f" in the cluster instance {instance_id}" if instance_id else "")

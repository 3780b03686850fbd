"""Whether the folders of a bookie are listed as they were when it wrote to them: all of them, each at its place.

Which ledger lives where follows from the number and order of the folders alone (storage section 1). Whoever changes
something by other lists writes into the wrong folder, or takes what is in the right one for lost. What a folder says of
itself is in its VERSION file, which names all folders, and in its place (``bkctl.place``). One that says nothing yet,
new or emptied, is where the others put it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from commands.storage.own_storage import OwnStorage
from runtime.errors import RefusedError

WAY_OUT = "give all folders as they were, in number and order (bkctl cookie verify, with the same settings, says how)"


class Contradiction(NamedTuple):
    """A folder that is another one than the settings take it for: the file that says so, and what it says."""

    path: str
    reason: str


def require_agreeing_folders(own: OwnStorage) -> None:
    """RefusedError when a folder contradicts the settings. For every command that changes something."""
    for path, reason in find_contradictions(own):
        raise RefusedError(f"nothing was changed: {path}: {reason}: {WAY_OUT}")


def find_contradictions(own: OwnStorage) -> Iterator[Contradiction]:
    """What the next start would refuse by the folders' own word, at most one for each folder; nothing is changed."""
    from runtime.bookie.cookies.folders import (
        named_folders,
        place_of,
        place_path,
        read_folder,
        spelled_as,
        version_path,
    )

    wanted = named_folders(own.config)
    owner: tuple[str, str | None] | None = None
    for directory in own.config.all_directories:
        state = read_folder(own.file_system, directory)
        cookie = spelled_as(own.config, state.cookie)
        if cookie is not None:
            found = named_folders(cookie)
            identity = cookie.bookie_id, cookie.instance_id or None
            owner = owner or identity
            if found != wanted:
                reason = f"it names the folders {_listed(found)}, but the settings {_listed(wanted)}"
                yield Contradiction(version_path(directory), reason)
                continue
            if identity != owner:
                reason = f"it is that of {_named(identity)}, but the folders before it are those of {_named(owner)}"
                yield Contradiction(version_path(directory), reason)
                continue
        place = place_of(own.config, directory)
        if state.place is not None and state.place != place:
            reason = (
                f"the folder was {' and '.join(state.place)} when its bookie last started, and the settings make it "
                f"{' and '.join(place)} (counted from 0)"
            )
            yield Contradiction(place_path(directory), reason)


def _listed(lists: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(",".join(paths) for paths in lists)


def _named(identity: tuple[str, str | None]) -> str:
    bookie_id, instance_id = identity
    return f"bookie {bookie_id}" + (f" in the cluster instance {instance_id}" if instance_id else "")

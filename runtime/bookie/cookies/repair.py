"""Changes of the cookies of a stopped bookie: checks first, then steps that can be interrupted after each one.

The caller holds the locks of all directories, and has checked that no bookie with these ids is registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from bkctl.runtime.bookie.cookies.directories import DirectoryState, forget_migration, note_migration, write_version
from bkctl.runtime.bookie.cookies.directory_rules import is_same_shape
from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.errors import NoNodeError, RefusedError
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore, encode_cookie
from bkctl.runtime.metadata.store import Versioned
from bkctl.storage.ports import FileSystem


def require_own_directories(evidence: Evidence) -> None:
    """RefusedError unless the directories provably belong to this bookie, each at its old position.

    The proof is the VERSION file, with the bookie id and the cluster's instance id. If that file is damaged or missing,
    the place file together with data is enough; if it is only damaged, so is a stored cookie that matches the settings.
    """
    own, instance_id = evidence.bookie_id, evidence.expected.instance_id or None
    for directory in evidence.directories:
        cookie = directory.cookie
        if directory.trouble is not None or not directory.is_present or directory.migration is not None:
            raise _refused(f"{directory.path} has problems")
        if cookie is None and not _is_proved_otherwise(evidence, directory):
            raise _refused(f"nothing in {directory.path} proves that it is a directory of bookie {own}")
        if cookie is not None and (cookie.bookie_id, cookie.instance_id or None) != (own, instance_id):
            raise _refused(f"{directory.path} belongs to bookie {cookie.bookie_id} of instance {cookie.instance_id}")
        if directory.place is not None and directory.place != evidence.places[directory.path]:
            raise _refused(f"{directory.path} was at another position of the list when the bookie last ran")
    if not all(is_same_shape(evidence.expected, cookie) for cookie in evidence.known_cookies):
        raise _refused("the settings have another number or order of directories than the cookies")
    if not evidence.cookies_on_disk and not _agrees(evidence):
        raise _refused(f"no directory has a VERSION file of bookie {own}")
    empty = next((directory for directory in evidence.directories if not directory.has_files), None)
    if evidence.is_named(own) and empty is not None:
        raise _refused(f"{empty.path} is empty, but ledgers reference bookie {own}")


def _is_proved_otherwise(evidence: Evidence, directory: DirectoryState) -> bool:
    """Whether other files prove that a directory without a readable VERSION file belongs to the bookie."""
    return directory.has_files and (directory.place is not None or (directory.damage is not None and _agrees(evidence)))


def _agrees(evidence: Evidence) -> bool:
    return evidence.stored is not None and not evidence.expected.differences(evidence.stored)


def require_matching_directories(evidence: Evidence) -> None:
    """``require_own_directories``, and every VERSION file exists and matches the settings; RefusedError."""
    require_own_directories(evidence)
    for directory in evidence.directories:
        if directory.cookie is None or evidence.expected.differences(directory.cookie):
            raise _refused(f"the VERSION file in {directory.path} does not match the settings")


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"nothing was changed: {reason}; run bkctl cookie verify for details")


def restamp(file_system: FileSystem, evidence: Evidence) -> None:
    """Write every VERSION file that does not match the settings; OSError."""
    data = encode_cookie(evidence.expected)
    for directory in evidence.directories:
        if directory.cookie is None or evidence.expected.differences(directory.cookie):
            write_version(file_system, directory.path, data)


class MigrationState(msgspec.Struct, frozen=True):
    """A change of a bookie's id: its progress, and the old stored cookie."""

    old_id: str
    new_cookie: Cookie
    directories: tuple[DirectoryState, ...]
    old_stored: Versioned[Cookie] | None
    """None: it is already deleted."""
    has_new_stored: bool
    is_begun: bool
    """Whether a directory has the record of an earlier attempt."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return (
            self.old_stored is None
            and self.has_new_stored
            and not self.is_begun
            and not any(self.lacks_new(directory) for directory in self.directories)
        )

    def lacks_new(self, directory: DirectoryState) -> bool:
        """Whether a directory's VERSION file does not have the new id yet."""
        return directory.cookie is None or directory.cookie.bookie_id != self.new_cookie.bookie_id


async def examine_migration(evidence: Evidence, old_id: str, cookies: CookieStore) -> MigrationState:
    """Check that exactly the change from ``old_id`` to the id of ``evidence`` can begin or continue.

    RefusedError says what does not match; MetadataFormatError for a damaged stored cookie.
    """
    new = evidence.expected
    old = msgspec.structs.replace(new, bookie_id=old_id)
    notes = {directory.migration for directory in evidence.directories} - {None}
    if notes - {(old_id, new.bookie_id)}:
        raise _refused("another change of the bookie id is in progress in these directories")
    stored_old, stored_new = await cookies.find(old_id), await cookies.find(new.bookie_id)
    state = MigrationState(
        old_id=old_id,
        new_cookie=new,
        directories=evidence.directories,
        old_stored=stored_old,
        has_new_stored=stored_new is not None,
        is_begun=bool(notes),
    )
    if stored_new is not None and new.differences(stored_new.value):
        raise _refused(f"bookie {new.bookie_id} has a cookie with other directories: it is another bookie")
    if stored_old is not None and old.differences(stored_old.value):
        raise _refused(f"the stored cookie of bookie {old_id} has other directories or another instance")
    for directory in evidence.directories:
        _require_old_or_new(directory, old, new)
        if directory.place is not None and directory.place != evidence.places[directory.path]:
            raise _refused(f"{directory.path} was at another position of the list when the bookie last ran")
    if state.is_done or state.is_begun:
        if stored_old is None and stored_new is None:
            raise _refused(f"the cluster has a cookie neither for bookie {old_id} nor for {new.bookie_id}")
        return state
    if stored_new is not None:
        raise _refused(f"bookie {new.bookie_id} has a cookie already: it is another bookie")
    if stored_old is None:
        raise _refused(f"the cluster has no cookie for bookie {old_id}")
    if not all(
        directory.cookie is not None and directory.cookie.bookie_id == old_id for directory in evidence.directories
    ):
        raise _refused(f"not all directories belong to bookie {old_id}")
    return state


def _require_old_or_new(directory: DirectoryState, old: Cookie, new: Cookie) -> None:
    if directory.trouble is not None or directory.cookie is None:
        raise _refused(f"{directory.path} has no readable VERSION file")
    if old.differences(directory.cookie) and new.differences(directory.cookie):
        raise _refused(f"the VERSION file in {directory.path} has another bookie, instance or other directories")


async def migrate(
    state: MigrationState, file_system: FileSystem, cookies: CookieStore, before_each: Callable[[], None]
) -> None:
    """Perform or continue the change. After a crash anywhere, the same call continues.

    The records in the directories come first, because they prevent a start under either id; then the new cookie and the
    VERSION files; once these are durable the old cookie is deleted; the records go last. BadVersionError,
    NodeExistsError, OSError.
    """
    data = encode_cookie(state.new_cookie)
    new_id = state.new_cookie.bookie_id
    for directory in state.directories:
        before_each()
        note_migration(file_system, directory.path, state.old_id, new_id)
    if not state.has_new_stored:
        before_each()
        await cookies.create_node(new_id, data)
    for directory in state.directories:
        if state.lacks_new(directory):
            before_each()
            write_version(file_system, directory.path, data)
    if state.old_stored is not None:
        before_each()
        with contextlib.suppress(NoNodeError):
            await cookies.delete(state.old_id, state.old_stored)
    for directory in state.directories:
        forget_migration(file_system, directory.path)

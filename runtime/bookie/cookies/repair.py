"""Changes of the cookies of a stopped bookie: checks first, then steps that can be interrupted after each one.

The caller holds the locks of all directories, and has checked that no bookie with these ids is registered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from bkctl.runtime.bookie.cookies.evidence import Evidence
from bkctl.runtime.bookie.cookies.folder_rules import is_same_shape
from bkctl.runtime.bookie.cookies.folders import FolderState, forget_migration, note_migration, write_version
from bkctl.runtime.errors import NoNodeError, RefusedError
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore, encode_cookie
from bkctl.storage.ports import FileSystem


def require_own_folders(evidence: Evidence) -> None:
    """RefusedError unless the directories provably belong to this bookie, each at its old position.

    The proof is the VERSION file, with the bookie id and the cluster's instance id. If that file is damaged or missing,
    the place file together with data is enough; if it is only damaged, so is a stored cookie that matches the settings.
    """
    own, instance_id = evidence.bookie_id, evidence.expected.instance_id or None
    for folder in evidence.folders:
        cookie = folder.cookie
        if folder.trouble is not None or not folder.is_present or folder.migration is not None:
            raise _refused(f"{folder.path} has problems")
        if cookie is None and not _is_proved_otherwise(evidence, folder):
            raise _refused(f"nothing in {folder.path} proves that it is a directory of bookie {own}")
        if cookie is not None and (cookie.bookie_id, cookie.instance_id or None) != (own, instance_id):
            raise _refused(f"{folder.path} belongs to bookie {cookie.bookie_id} of instance {cookie.instance_id}")
        if folder.place is not None and folder.place != evidence.places[folder.path]:
            raise _refused(f"{folder.path} was at another position of the list when the bookie last ran")
    if not all(is_same_shape(evidence.expected, cookie) for cookie in evidence.known_cookies):
        raise _refused("the settings have another number or order of directories than the cookies")
    if not evidence.cookies_on_disk and not _agrees(evidence):
        raise _refused(f"no directory has a VERSION file of bookie {own}")
    empty = next((folder for folder in evidence.folders if not folder.has_files), None)
    if evidence.is_named(own) and empty is not None:
        raise _refused(f"{empty.path} is empty, but ledgers reference bookie {own}")


def _is_proved_otherwise(evidence: Evidence, folder: FolderState) -> bool:
    """Whether other files prove that a directory without a readable VERSION file belongs to the bookie."""
    return folder.has_files and (folder.place is not None or (folder.damage is not None and _agrees(evidence)))


def _agrees(evidence: Evidence) -> bool:
    return evidence.stored is not None and not evidence.expected.differences(evidence.stored)


def require_matching_folders(evidence: Evidence) -> None:
    """``require_own_folders``, and every VERSION file exists and matches the settings; RefusedError."""
    require_own_folders(evidence)
    for folder in evidence.folders:
        if folder.cookie is None or evidence.expected.differences(folder.cookie):
            raise _refused(f"the VERSION file in {folder.path} does not match the settings")


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"nothing was changed: {reason}; run bkctl cookie verify for details")


def restamp(file_system: FileSystem, evidence: Evidence) -> None:
    """Write every VERSION file that does not match the settings; OSError."""
    data = encode_cookie(evidence.expected)
    for folder in evidence.folders:
        if folder.cookie is None or evidence.expected.differences(folder.cookie):
            write_version(file_system, folder.path, data)


class MigrationState(msgspec.Struct, frozen=True):
    """A change of a bookie's id: its progress, and the version of the old stored cookie."""

    old_id: str
    new_cookie: Cookie
    folders: tuple[FolderState, ...]
    old_version: int | None
    """Version of the old stored cookie; None: it is already deleted."""
    has_new_stored: bool
    is_begun: bool
    """Whether a directory has the record of an earlier attempt."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return (
            self.old_version is None
            and self.has_new_stored
            and not self.is_begun
            and not any(self.lacks_new(folder) for folder in self.folders)
        )

    def lacks_new(self, folder: FolderState) -> bool:
        """Whether a directory's VERSION file does not have the new id yet."""
        return folder.cookie is None or folder.cookie.bookie_id != self.new_cookie.bookie_id


async def examine_migration(evidence: Evidence, old_id: str, cookies: CookieStore) -> MigrationState:
    """Check that exactly the change from ``old_id`` to the id of ``evidence`` can begin or continue.

    RefusedError says what does not match; MetadataFormatError for a damaged stored cookie.
    """
    new = evidence.expected
    old = msgspec.structs.replace(new, bookie_id=old_id)
    notes = {folder.migration for folder in evidence.folders} - {None}
    if notes - {(old_id, new.bookie_id)}:
        raise _refused("another change of the bookie id is in progress in these directories")
    stored_old, stored_new = await cookies.find(old_id), await cookies.find(new.bookie_id)
    state = MigrationState(
        old_id=old_id,
        new_cookie=new,
        folders=evidence.folders,
        old_version=None if stored_old is None else stored_old.version,
        has_new_stored=stored_new is not None,
        is_begun=bool(notes),
    )
    if stored_new is not None and new.differences(stored_new.value):
        raise _refused(f"bookie {new.bookie_id} has a cookie with other directories: it is another bookie")
    if stored_old is not None and old.differences(stored_old.value):
        raise _refused(f"the stored cookie of bookie {old_id} has other directories or another instance")
    for folder in evidence.folders:
        _require_old_or_new(folder, old, new)
        if folder.place is not None and folder.place != evidence.places[folder.path]:
            raise _refused(f"{folder.path} was at another position of the list when the bookie last ran")
    if state.is_done or state.is_begun:
        if stored_old is None and stored_new is None:
            raise _refused(f"the cluster has a cookie neither for bookie {old_id} nor for {new.bookie_id}")
        return state
    if stored_new is not None:
        raise _refused(f"bookie {new.bookie_id} has a cookie already: it is another bookie")
    if stored_old is None:
        raise _refused(f"the cluster has no cookie for bookie {old_id}")
    if not all(folder.cookie is not None and folder.cookie.bookie_id == old_id for folder in evidence.folders):
        raise _refused(f"not all directories belong to bookie {old_id}")
    return state


def _require_old_or_new(folder: FolderState, old: Cookie, new: Cookie) -> None:
    if folder.trouble is not None or folder.cookie is None:
        raise _refused(f"{folder.path} has no readable VERSION file")
    if old.differences(folder.cookie) and new.differences(folder.cookie):
        raise _refused(f"the VERSION file in {folder.path} has another bookie, instance or other directories")


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
    for folder in state.folders:
        before_each()
        note_migration(file_system, folder.path, state.old_id, new_id)
    if not state.has_new_stored:
        before_each()
        await cookies.create_node(new_id, data)
    for folder in state.folders:
        if state.lacks_new(folder):
            before_each()
            write_version(file_system, folder.path, data)
    if state.old_version is not None:
        before_each()
        with contextlib.suppress(NoNodeError):
            await cookies.delete(state.old_id, state.old_version)
    for folder in state.folders:
        forget_migration(file_system, folder.path)

"""Contents of a bookie's configured directories, read without changing anything. Source: metadata section 7.3.

Which ledger is in which directory follows only from the position of the directory in the settings (storage section 1).
The cookie does not protect that, because its names can be rewritten. So every directory also has a *place* file, with
its positions in the three lists when the bookie last booted. ``bkctl.place``::

    bkctl place 1
    journal 0 of 1
    ledger 1 of 2
    index 1 of 2
    crc32 ...
"""

from __future__ import annotations

import os
import re

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.bookies.cookies import Cookie, decode_cookie
from bkctl.storage import filenames
from bkctl.storage.checked_text import decode_checked_text, encode_checked_text
from bkctl.storage.config import StorageConfig, normal_directory
from bkctl.storage.index.seal import decode_seal_record
from bkctl.storage.journal.format import VERSION_HEADER_BYTES
from bkctl.storage.ports import FileSystem

_PRE_V3_NAMES = (".txn", ".idx", ".log")
_PLACE_FORMAT = "bkctl place 1"
_PLACE_LINE = re.compile(r"(journal|ledger|index) [0-9]+ of [0-9]+")
_CHUNK_BYTES = 1024 * 1024
_MIGRATION_FORMAT = "bkctl migration 1"
_NOT_DATA = frozenset(
    {
        filenames.VERSION,
        filenames.LOCK,
        filenames.PLACE,
        filenames.MIGRATION,
        filenames.DIRTY,
        filenames.JAVA_BLOCK,
    }
)
_WITHOUT_LEDGERS = frozenset(
    {
        *_NOT_DATA,
        *filenames.DATABASES,
        *map(filenames.seal_file_name, filenames.DATABASES),
        filenames.JOURNAL_CATALOG,
        filenames.LAST_ID,
        filenames.BOOKIE_STATUS,
        filenames.METADATA_SEEN,
        filenames.OPERATOR_MODE,
    }
)
_MARK = re.compile(r"(lastMark|bkctl\.mark)(\.[0-9]+)?")


class DirectoryState(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a configured directory.

    ``cookie`` None: no VERSION file, or ``damage`` says why it is not a cookie. ``trouble``: why the directory cannot
    be used at all. ``has_files``: it has more than cookie, lock and place. ``has_ledgers`` None: not checked.
    ``place``: its position when the bookie last booted, None if not recorded. ``migration``: old and new bookie id
    while a change of the id is in progress. ``is_formatting``: a format of it was interrupted; ``formatted`` is the
    cookie that it had, if that was readable.
    """

    path: str
    is_present: bool = True
    cookie: Cookie | None = None
    damage: str | None = None
    trouble: str | None = None
    has_files: bool = False
    has_ledgers: bool | None = None
    place: tuple[str, ...] | None = None
    migration: tuple[str, str] | None = None
    is_formatting: bool = False
    formatted: Cookie | None = None

    @property
    def is_stamped(self) -> bool:
        """Whether there is a VERSION file, readable or not."""
        return self.cookie is not None or self.damage is not None


def named_directories(names: StorageConfig | Cookie) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Journal, ledger and index directories from settings or a cookie; without index directories, the last are those of
    the ledgers."""
    return names.journal_directories, names.ledger_directories, names.index_directories or names.ledger_directories


def spelled_as(config: StorageConfig, cookie: Cookie | None) -> Cookie | None:
    """The cookie with its directories spelled as in the settings, so that the two can be compared.

    A cookie keeps the spelling of the settings at the time it was written, in Java even with a trailing slash.
    """
    if cookie is None:
        return None
    spelling = {normal_directory(path): path for path in config.all_directories}

    def respelled(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(spelling.get(normal_directory(path), path) for path in paths)

    index = cookie.index_directories
    return msgspec.structs.replace(
        cookie,
        journal_directories=respelled(cookie.journal_directories),
        ledger_directories=respelled(cookie.ledger_directories),
        index_directories=None if index is None else respelled(index),
    )


def place_of(config: StorageConfig, path: str) -> tuple[str, ...]:
    """Positions of a directory in the lists of journal, ledger and index directories, as lines of its place file."""
    lists = zip(("journal", "ledger", "index"), named_directories(config), strict=True)
    return tuple(f"{role} {paths.index(path)} of {len(paths)}" for role, paths in lists if path in paths)


def record_places(file_system: FileSystem, config: StorageConfig) -> None:
    """Record its place in every directory; OSError. Only for a bookie whose directories passed all checks."""
    for path in config.all_directories:
        current = filenames.current_directory(path)
        place = place_of(config, path)
        if _read_place(file_system, current) != place:
            data = encode_checked_text(_PLACE_FORMAT, place)
            file_system.write_file_atomically(place_path(path), data)


def read_directory(file_system: FileSystem, path: str) -> DirectoryState:
    """State of a configured directory, without ``has_ledgers``."""
    try:
        names = file_system.list_directory(path)
        if filenames.CURRENT in names:
            return _read_current(file_system, path, filenames.current_directory(path))
    except FileNotFoundError:
        if file_system.exists(path):
            return DirectoryState(path=path, trouble="it is, or contains, a broken link")
        return DirectoryState(path=path, is_present=False)
    except OSError as error:
        return DirectoryState(path=path, trouble=error.strerror or str(error))
    old = next((name for name in names if name == filenames.VERSION or name.endswith(_PRE_V3_NAMES)), None)
    trouble = None if old is None else f"it has the layout of a BookKeeper before 4.0 ({old})"
    return DirectoryState(path=path, trouble=trouble)


def _read_current(file_system: FileSystem, path: str, current: str) -> DirectoryState:
    names = file_system.list_directory(current)
    if filenames.FORMATTING in names:
        formatted, _ = _read_cookie(file_system, os.path.join(current, filenames.FORMATTING))
        trouble = "a format of it was interrupted: finish it with bkctl bookie format"
        return DirectoryState(path=path, trouble=trouble, is_formatting=True, formatted=formatted)
    cookie, damage = None, None
    if filenames.VERSION in names:
        cookie, damage = _read_cookie(file_system, version_path(path))
    return DirectoryState(
        path=path,
        cookie=cookie,
        damage=damage,
        has_files=any(name not in _NOT_DATA and not name.endswith(filenames.TEMPORARY_SUFFIX) for name in names),
        place=_read_place(file_system, current),
        migration=_read_migration(file_system, current),
    )


def _read_cookie(file_system: FileSystem, path: str) -> tuple[Cookie | None, str | None]:
    """The cookie in a file, or what is wrong with it."""
    try:
        return decode_cookie(file_system.read_file(path)), None
    except MetadataFormatError as error:
        return None, str(error)
    except OSError as error:
        return None, error.strerror or str(error)


def _read_place(file_system: FileSystem, current: str) -> tuple[str, ...] | None:
    """The recorded place; None if it is missing or damaged."""
    try:
        lines = decode_checked_text(_PLACE_FORMAT, file_system.read_file(os.path.join(current, filenames.PLACE)))
    except OSError:
        return None
    if lines is None or not all(map(_PLACE_LINE.fullmatch, lines)):
        return None
    return tuple(lines)


def version_path(path: str) -> str:
    """Path of the cookie of a configured directory."""
    return os.path.join(filenames.current_directory(path), filenames.VERSION)


def place_path(path: str) -> str:
    """Path of the place file of a configured directory."""
    return os.path.join(filenames.current_directory(path), filenames.PLACE)


def write_version(file_system: FileSystem, path: str, data: bytes) -> None:
    """Write the bytes of a cookie to a configured directory, atomically; OSError."""
    file_system.make_directories(filenames.current_directory(path))
    file_system.write_file_atomically(version_path(path), data)


def note_migration(file_system: FileSystem, path: str, old_id: str, new_id: str) -> None:
    """Record in a directory that its bookie is about to change its id; OSError."""
    note = os.path.join(filenames.current_directory(path), filenames.MIGRATION)
    file_system.write_file_atomically(note, encode_checked_text(_MIGRATION_FORMAT, (old_id, new_id)))


def forget_migration(file_system: FileSystem, path: str) -> None:
    """Remove the record when the change of the id is done; OSError."""
    current = filenames.current_directory(path)
    note = os.path.join(current, filenames.MIGRATION)
    if file_system.exists(note):
        file_system.remove(note)
        file_system.sync_directory(current)


def _read_migration(file_system: FileSystem, current: str) -> tuple[str, str] | None:
    try:
        data = file_system.read_file(os.path.join(current, filenames.MIGRATION))
    except OSError:
        return None
    lines = decode_checked_text(_MIGRATION_FORMAT, data)
    return (lines[0], lines[1]) if lines is not None and len(lines) == 2 else None


def look_for_ledgers(file_system: FileSystem, state: DirectoryState) -> DirectoryState:
    """The state with ``has_ledgers``: whether there is any data of a ledger, even only a fence. OSError.

    A bookie that has booted but was never asked to store anything has none. Unknown files, and files that only a Java
    bookie writes, count as ledger data.
    """
    current = filenames.current_directory(state.path)
    names = file_system.list_directory(current) if state.has_files else []
    has_ledgers = any(_proves_ledgers(file_system, os.path.join(current, name), name) for name in names)
    return msgspec.structs.replace(state, has_ledgers=has_ledgers)


def _proves_ledgers(file_system: FileSystem, path: str, name: str) -> bool:
    if name.endswith(filenames.TEMPORARY_SUFFIX) or _MARK.fullmatch(name):
        return False
    if filenames.parse_journal_file_name(name) is not None:
        return _has_bytes(file_system, path)
    if name in map(filenames.seal_file_name, filenames.DATABASES):
        # The first batch belongs to the database itself; later ones are written for ledgers.
        record = decode_seal_record(file_system.read_file(path))
        return record is None or record.number > 1
    return name not in _WITHOUT_LEDGERS


def _has_bytes(file_system: FileSystem, path: str) -> bool:
    """Whether a journal file has anything except its header and zeros."""
    file = file_system.open(path)
    try:
        offset = VERSION_HEADER_BYTES
        while part := file.pread(_CHUNK_BYTES, offset):
            if part.strip(b"\0"):
                return True
            offset += len(part)
        return False
    finally:
        file.close()

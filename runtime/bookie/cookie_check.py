"""The check at boot that these folders belong to this bookie of this cluster. Source: metadata section 7.3.

Deciding is pure: what is on disk and in the metadata store goes in, "boot", "stamp" or a CookieError comes out. A
folder without a cookie is accepted only while nothing else says that it once held data.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Sequence

import msgspec

from runtime.errors import CookieError, MetadataFormatError
from runtime.metadata.cookies import Cookie, CookieStore, decode_cookie, encode_cookie
from runtime.metadata.store import Versioned
from storage import filenames
from storage.config import StorageConfig
from storage.ports import FileSystem

logger = logging.getLogger(__name__)

_PRE_V3_NAMES = (".txn", ".idx", ".log")


class DirectoryState(msgspec.Struct, frozen=True):
    """What a configured folder holds: its cookie if it has one, and whether there is anything else."""

    path: str
    cookie: Cookie | None
    has_data: bool


class CookieDecision(enum.Enum):
    """What to do with folders that may be used."""

    BOOT = "all cookies are there and match"
    STAMP = "a new bookie: write the cookie everywhere"


def decide(expected: Cookie, stored: Cookie | None, directories: Sequence[DirectoryState]) -> CookieDecision:
    """Whether a bookie that should have the cookie ``expected`` may use these folders; CookieError says why not."""
    if stored is not None and (difference := expected.difference(stored)) is not None:
        raise CookieError(
            f"bookie {expected.bookie_id} is known to this cluster with other settings ({difference}); "
            "start it with the settings it had, or under a bookie id of its own (--bookie-id)"
        )
    for directory in directories:
        if directory.cookie is not None and (difference := expected.difference(directory.cookie)) is not None:
            raise CookieError(
                f"{directory.path} belongs to another bookie or cluster ({difference}); "
                "choose an empty folder, or the settings and the metadata URI it was made with"
            )
    if stored is None:
        return _require_new(expected.bookie_id, directories)
    lacking = [directory for directory in directories if directory.cookie is None]
    if lacking:
        raise CookieError(
            f"{lacking[0].path} has no cookie although bookie {expected.bookie_id} is known to this cluster: "
            "its disk is not mounted, was emptied, or the folder is new; entries would be missing"
        )
    return CookieDecision.BOOT


def _require_new(bookie_id: str, directories: Sequence[DirectoryState]) -> CookieDecision:
    """A bookie without a stored cookie must be a new one: no folder may hold anything but a cookie.

    Folders that have the cookie and nothing else are those of a first start that was cut off while stamping.
    """
    for directory in directories:
        if directory.has_data and directory.cookie is None:
            raise CookieError(f"{directory.path} holds files but no cookie: choose an empty folder")
        if directory.has_data:
            raise CookieError(
                f"the cluster has no cookie for bookie {bookie_id} although {directory.path} holds its data: it was "
                "decommissioned, or the cluster was formatted; use empty folders"
            )
    return CookieDecision.STAMP


def cookie_directories(config: StorageConfig) -> list[str]:
    """Every configured folder that carries a cookie, once each, in the order of the settings."""
    return list(dict.fromkeys((*config.journal_directories, *config.ledger_directories, *config.index_directories)))


def read_directory(file_system: FileSystem, path: str) -> DirectoryState:
    """State of a configured folder; CookieError for an unreadable cookie or a layout older than "current"."""
    current = filenames.current_directory(path)
    if not file_system.exists(current):
        _refuse_old_layout(file_system, path)
        return DirectoryState(path, cookie=None, has_data=False)
    names = {
        name
        for name in file_system.list_directory(current)
        if name != filenames.LOCK and not name.endswith(filenames.TEMPORARY_SUFFIX)
    }
    if filenames.VERSION not in names:
        return DirectoryState(path, cookie=None, has_data=bool(names))
    version_path = os.path.join(current, filenames.VERSION)
    try:
        cookie = decode_cookie(file_system.read_file(version_path))
    except MetadataFormatError as error:
        raise CookieError(f"{version_path} is not a cookie: {error}") from error
    return DirectoryState(path, cookie, has_data=names != {filenames.VERSION})


def _refuse_old_layout(file_system: FileSystem, path: str) -> None:
    """Files of a bookie directly in the configured folder are a layout before version 3 (storage section 1)."""
    if not file_system.exists(path):
        return
    for name in file_system.list_directory(path):
        if name == filenames.VERSION or name.endswith(_PRE_V3_NAMES):
            raise CookieError(f"{path} has the layout of a BookKeeper before 4.0 ({name}): choose an empty folder")


async def check_cookies(
    file_system: FileSystem, config: StorageConfig, expected: Cookie, store: CookieStore
) -> CookieDecision:
    """Check all folders and the stored cookie and change nothing; CookieError says why they cannot be used."""
    stored: Versioned[Cookie] | None = await store.find(expected.bookie_id)
    directories = [read_directory(file_system, path) for path in cookie_directories(config)]
    return decide(expected, stored.value if stored is not None else None, directories)


async def stamp_cookies(file_system: FileSystem, config: StorageConfig, cookie: Cookie, store: CookieStore) -> None:
    """Write the cookie of a new bookie: folders first, the metadata store last.

    A crash between the two leaves folders that name the bookie and no stored cookie, which the check refuses: better
    than a stored cookie that blesses folders which were never stamped.
    """
    data = encode_cookie(cookie)
    for path in cookie_directories(config):
        current = filenames.current_directory(path)
        file_system.make_directories(current)
        file_system.write_file_atomically(os.path.join(current, filenames.VERSION), data)
    await store.create(cookie)
    logger.info("new bookie %s: its cookie is stored", cookie.bookie_id)

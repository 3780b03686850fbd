"""What is known of a bookie's directories, settings and cookies, and the types for findings. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from bkctl.runtime.bookie.cookies.directories import DirectoryState
from bkctl.runtime.metadata.bookies.cookies import Cookie


class Cause(enum.Enum):
    """Why directories, settings and cluster do not match."""

    UNUSABLE_DIRECTORY = "unusable directory"
    TWO_BOOKIES = "two bookies with one id"
    WRONG_CLUSTER = "wrong cluster"
    NEW_INSTANCE = "different instance"
    NEW_ADDRESS = "new address"
    ADDRESS_OF_ANOTHER = "address of another bookie"
    MIGRATION_CUT_OFF = "interrupted migration"
    DIRECTORY_OF_ANOTHER = "directory of another bookie"
    DIRECTORIES_CHANGED = "number or order of directories changed"
    SWAPPED_VOLUMES = "swapped volumes"
    MOVED_DIRECTORY = "moved directory"
    INDEX_DIRECTORIES_UNNAMED = "cookie of layout 4 without index directories"
    DAMAGED_VERSION = "damaged VERSION file"
    OUTDATED_VERSION = "outdated VERSION file"
    LOST_VERSION = "missing VERSION file"
    DAMAGED_COOKIE = "damaged stored cookie"
    DIFFERENT_COOKIE = "stored cookie differs"
    MISSING_DISK = "missing disk"
    EMPTIED_VOLUME = "empty directory"
    LOST_COOKIE = "missing stored cookie"
    FOREIGN_FILES = "files without a cookie"
    UNUSABLE_ADDRESS = "unusable address"


class Remedy(msgspec.Struct, frozen=True):
    """A bkctl command. ``has_settings``: it needs the same bookie settings as the check.

    ``without``: options among these settings that the command replaces.
    """

    words: tuple[str, ...]
    has_settings: bool = False
    without: tuple[str, ...] = ()


class CookieFinding(msgspec.Struct, frozen=True):
    """What is wrong, in a sentence, and the fix."""

    cause: Cause
    sentence: str
    remedy: Remedy


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a bookie that does not run here.

    ``expected``: the cookie that follows from the settings. ``stored``: the cookie of its id in the cluster, None if
    there is none or ``stored_damage`` says why it is unreadable. ``other_cookies``: cookies of other ids that are in
    its VERSION files, or that this host could have had (``former_ids``). ``places``: position of each directory in the
    settings. ``ledgers_naming``: how many ledgers reference an id, for the counted ids. ``is_registered``: a running
    bookie has this id. ``is_given_up``: it has left the cluster, and all ledgers that reference it were given up with
    it.
    """

    expected: Cookie
    stored: Cookie | None
    directories: tuple[DirectoryState, ...]
    stored_damage: str | None = None
    other_cookies: Mapping[str, Cookie] = {}
    former_ids: Collection[str] = ()
    places: Mapping[str, tuple[str, ...]] = {}
    ledgers_naming: Mapping[str, int] = {}
    is_registered: bool = False
    is_given_up: bool = False
    is_expansion_allowed: bool = False

    @property
    def bookie_id(self) -> str:
        """Id from the settings."""
        return self.expected.bookie_id

    @property
    def has_stored(self) -> bool:
        """Whether the cluster has a cookie for this id, readable or not."""
        return self.stored is not None or self.stored_damage is not None

    @property
    def cookies_on_disk(self) -> tuple[Cookie, ...]:
        """The readable VERSION files."""
        return tuple(directory.cookie for directory in self.directories if directory.cookie is not None)

    @property
    def known_cookies(self) -> tuple[Cookie, ...]:
        """The readable cookies: the VERSION files, and the stored one."""
        return self.cookies_on_disk if self.stored is None else (*self.cookies_on_disk, self.stored)

    @property
    def has_ledgers(self) -> bool:
        """Whether any directory has data of a ledger, or this was not checked."""
        return any(directory.has_files and directory.has_ledgers is not False for directory in self.directories)

    @property
    def bare_directories(self) -> tuple[DirectoryState, ...]:
        """Directories with only a VERSION file: a start was interrupted after the stamp, or the disk was emptied.

        A start leaves files in every directory, and only a bookie that started can be chosen for a ledger, so the
        ledgers distinguish the two. An index directory of a non-empty ledger directory is not included: its index can
        be rebuilt, or is reported missing when the storage is opened; a Java bookie that was killed early has none.
        """
        return tuple(
            directory
            for directory in self.directories
            if directory.is_stamped and not directory.has_files and not self.is_index_alone(directory)
        )

    def is_index_alone(self, directory: DirectoryState) -> bool:
        """Whether a directory is only for indexes, and each of their ledger directories has files."""
        settings = self.expected
        if directory.path in {*settings.journal_directories, *settings.ledger_directories}:
            return False
        filled = {each.path for each in self.directories if each.has_files}
        return all(
            ledger_path in filled for ledger_path, index_path in settings.index_pairs if index_path == directory.path
        )

    @property
    def emptied_index(self) -> DirectoryState | None:
        """The first index directory without VERSION file and data whose ledger directory has files."""
        return next(
            (
                each
                for each in self.directories
                if not each.is_stamped and not each.has_files and self.is_index_alone(each)
            ),
            None,
        )

    @property
    def misplaced_directories(self) -> tuple[DirectoryState, ...]:
        """Directories that had another position in the settings when the bookie last booted."""
        return tuple(
            directory
            for directory in self.directories
            if directory.place is not None and directory.place != self.places.get(directory.path, directory.place)
        )

    def is_named(self, bookie_id: str) -> bool:
        """Whether ledgers reference a bookie; an id that was not counted counts as referenced."""
        return self.ledgers_naming.get(bookie_id, 1) > 0


def is_expansion(evidence: Evidence) -> bool:
    """Whether the settings add ledger directories to a bookie without ledger data, and nothing is missing.

    The superset rule of metadata section 7.3, but stricter: a bookie with ledgers is never expanded, because its
    ledgers would then be expected in other directories.
    """
    known = evidence.known_cookies
    if not known or evidence.has_ledgers or not all(map(evidence.expected.is_superset_of, known)):
        return False
    before = [cookie for cookie in known if evidence.expected.differences(cookie)]
    if not before:
        return False
    paths = {path for cookie in before for path in (*cookie.ledger_directories, *cookie.effective_index_directories)}
    paths |= {path for cookie in before for path in cookie.journal_directories}
    is_new = [directory.path not in paths for directory in evidence.directories]
    return any(is_new) and all(
        directory.is_stamped or (new and not directory.has_files and directory.trouble is None)
        for directory, new in zip(evidence.directories, is_new, strict=True)
    )


def verify_again() -> Remedy:
    """No bkctl command fixes it: check again after the fix."""
    return Remedy(("cookie", "verify"), has_settings=True)


def remove_bookie(evidence: Evidence) -> Remedy:
    """Remove a bookie from the cluster; deleting its cookie is enough only if no ledger references it."""
    own = evidence.bookie_id
    return Remedy(("decommission", own) if evidence.is_named(own) else ("cookie", "delete", own))


def lost_disk(evidence: Evidence) -> Remedy:
    """The runbook, which says how to keep the bookie or give it up; if no ledger references it, only its cookie is left
    to delete."""
    return Remedy(("help", "lost-disk")) if evidence.is_named(evidence.bookie_id) else remove_bookie(evidence)


def from_config(verb: str, evidence: Evidence) -> Remedy:
    """Write the cookie from the settings, after checking that the directories belong to this bookie."""
    return Remedy(("cookie", verb, evidence.bookie_id, "--from-config"), has_settings=True)

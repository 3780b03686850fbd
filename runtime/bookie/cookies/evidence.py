"""What is known of a bookie's folders, settings and cookies, and the words for what is wrong. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from runtime.bookie.cookies.folders import FolderState
from runtime.metadata.bookies.cookies import Cookie


class Cause(enum.Enum):
    """Why folders, settings and cluster do not fit together."""

    UNUSABLE_FOLDER = "unusable directory"
    TWO_BOOKIES = "two bookies with one id"
    WRONG_CLUSTER = "wrong cluster"
    NEW_INSTANCE = "different instance"
    NEW_ADDRESS = "new address"
    ADDRESS_OF_ANOTHER = "address of another bookie"
    MIGRATION_CUT_OFF = "interrupted migration"
    FOLDER_OF_ANOTHER = "directory of another bookie"
    FOLDERS_CHANGED = "number or order of directories changed"
    SWAPPED_VOLUMES = "swapped volumes"
    MOVED_FOLDER = "moved directory"
    INDEX_FOLDERS_UNNAMED = "cookie of layout 4 without index directories"
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
    """A bkctl command. ``has_settings``: it takes the same settings of the bookie as the check did.

    ``without``: options of these settings that the command gives anew.
    """

    words: tuple[str, ...]
    has_settings: bool = False
    without: tuple[str, ...] = ()


class CookieFinding(msgspec.Struct, frozen=True):
    """What is wrong, in a sentence, and what mends it."""

    cause: Cause
    sentence: str
    remedy: Remedy


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a bookie that does not run here.

    ``expected``: the cookie that follows from the settings. ``stored``: that of its id in the cluster, None when there
    is none or ``stored_damage`` says why it cannot be read. ``other_cookies``: cookies of other ids that its VERSION
    files name, or that this host could have had (``former_ids``). ``places``: where each folder stands in the settings.
    ``ledgers_naming``: how many ledgers name an id, for the ids that were counted. ``is_registered``: a running bookie
    has this id.
    """

    expected: Cookie
    stored: Cookie | None
    folders: tuple[FolderState, ...]
    stored_damage: str | None = None
    other_cookies: Mapping[str, Cookie] = {}
    former_ids: Collection[str] = ()
    places: Mapping[str, tuple[str, ...]] = {}
    ledgers_naming: Mapping[str, int] = {}
    is_registered: bool = False
    is_expansion_allowed: bool = False

    @property
    def bookie_id(self) -> str:
        """Id by the settings."""
        return self.expected.bookie_id

    @property
    def has_stored(self) -> bool:
        """Whether the cluster has a cookie for this id, readable or not."""
        return self.stored is not None or self.stored_damage is not None

    @property
    def cookies_on_disk(self) -> tuple[Cookie, ...]:
        """The VERSION files that can be read."""
        return tuple(folder.cookie for folder in self.folders if folder.cookie is not None)

    @property
    def known_cookies(self) -> tuple[Cookie, ...]:
        """The cookies that can be read: the VERSION files, and the stored one."""
        return self.cookies_on_disk if self.stored is None else (*self.cookies_on_disk, self.stored)

    @property
    def has_ledgers(self) -> bool:
        """Whether any folder holds something of a ledger, or nobody has looked."""
        return any(folder.has_files and folder.has_ledgers is not False for folder in self.folders)

    @property
    def bare_folders(self) -> tuple[FolderState, ...]:
        """Folders with a VERSION file that hold nothing: no start went on behind the stamp, or the disk was emptied.

        A start leaves files in every folder, and only a bookie that started can be chosen for a ledger. So it is the
        ledgers that tell the two apart. An index folder beside a filled ledger folder is not among them: an index is
        made from what that holds, or missed when the storage is opened; a Java bookie that was killed early has none.
        """
        return tuple(
            folder
            for folder in self.folders
            if folder.is_stamped and not folder.has_files and not self.is_index_alone(folder)
        )

    def is_index_alone(self, folder: FolderState) -> bool:
        """Whether a folder holds nothing but indexes by the settings, each of a ledger folder that has files."""
        settings = self.expected
        if folder.path in {*settings.journal_directories, *settings.ledger_directories}:
            return False
        filled = {each.path for each in self.folders if each.has_files}
        pairs = zip(settings.ledger_directories, settings.effective_index_directories, strict=True)
        return all(ledger_path in filled for ledger_path, index_path in pairs if index_path == folder.path)

    @property
    def emptied_index(self) -> FolderState | None:
        """The first index folder without VERSION file, or anything else, whose ledger folder has files."""
        return next(
            (each for each in self.folders if not each.is_stamped and not each.has_files and self.is_index_alone(each)),
            None,
        )

    @property
    def misplaced_folders(self) -> tuple[FolderState, ...]:
        """Folders that stood elsewhere in the settings when the bookie last booted."""
        return tuple(
            folder
            for folder in self.folders
            if folder.place is not None and folder.place != self.places.get(folder.path, folder.place)
        )

    def is_named(self, bookie_id: str) -> bool:
        """Whether ledgers name a bookie, as far as anybody has counted: what is unknown counts as yes."""
        return self.ledgers_naming.get(bookie_id, 1) > 0


def is_expansion(evidence: Evidence) -> bool:
    """Whether the settings add ledger folders to a bookie that holds no ledger, and nothing is missing.

    Superset rule of metadata section 7.3, and more: a bookie that holds ledgers is never expanded, for they would be
    looked for in other folders from then on.
    """
    known = evidence.known_cookies
    if not known or evidence.has_ledgers or not all(map(evidence.expected.is_superset_of, known)):
        return False
    before = [cookie for cookie in known if evidence.expected.differences(cookie)]
    if not before:
        return False
    paths = {path for cookie in before for path in (*cookie.ledger_directories, *cookie.effective_index_directories)}
    paths |= {path for cookie in before for path in cookie.journal_directories}
    lacking = [folder for folder in evidence.folders if not folder.is_stamped]
    return all(folder.path not in paths and not folder.has_files and folder.trouble is None for folder in lacking)


def verify_again() -> Remedy:
    """Nothing in bkctl mends it: look again when it is mended."""
    return Remedy(("cookie", "verify"), has_settings=True)


def remove_bookie(evidence: Evidence) -> Remedy:
    """Taking a bookie out of the cluster: its cookie alone goes only when no ledger names it."""
    own = evidence.bookie_id
    return Remedy(("decommission", own) if evidence.is_named(own) else ("cookie", "delete", own))


def from_config(verb: str, evidence: Evidence) -> Remedy:
    """The way that proves by the folders that they are this bookie's."""
    return Remedy(("cookie", verb, evidence.bookie_id, "--from-config"), has_settings=True)

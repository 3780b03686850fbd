"""The check at boot that these folders belong to this bookie of this cluster. Source: metadata section 7.3.

What is on disk and in the metadata store is gathered; ``doctor`` judges. A folder without a cookie is accepted
only while nothing else says that it once held data.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from runtime.bookie.cookies.doctor import diagnose, diagnose_loss
from runtime.bookie.cookies.evidence import Cause, CookieFinding, Evidence, is_expansion
from runtime.bookie.cookies.folders import (
    FolderState,
    look_for_ledgers,
    place_of,
    read_folder,
    spelled_as,
    write_version,
)
from runtime.errors import ConfigurationError, CookieError, MetadataFormatError, NoNodeError, RegistrationError
from runtime.ledger.metadata import is_valid_bookie_id
from runtime.metadata.bookies.cookies import Cookie, CookieStore, encode_cookie
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.metadata.ledgers.stored_ledgers import find_references
from runtime.metadata.store import MetadataStore
from storage.config import StorageConfig
from storage.ports import FileSystem

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_SEPARATORS = frozenset("\t\n\r,")
"""The format of a cookie separates folders by these, so that no name may contain one."""


class CookieDecision(enum.Enum):
    """What to do with folders that may be used."""

    BOOT = "all cookies are present and match"
    STAMP = "new bookie: write the cookie everywhere"
    EXPAND = "a bookie without ledgers has additional directories: write the cookie everywhere"
    REFILL = "directories are empty: record that, then write the cookie everywhere"


class CookieCheck(msgspec.Struct, frozen=True):
    """A decision, what it was made on, and the version of the stored cookie (None: there is none)."""

    decision: CookieDecision
    evidence: Evidence
    stored_version: int | None

    @property
    def depends_on_references(self) -> bool:
        """Whether the decision holds only if no ledger names the bookie: ``require_no_ledgers``."""
        if self.decision is CookieDecision.REFILL:
            return False
        return self.decision is CookieDecision.STAMP or bool(self.evidence.bare_folders)


def expected_cookie(config: StorageConfig, bookie_id: str, instance_id: str | None) -> Cookie:
    """The cookie that follows from the settings; ConfigurationError for a folder that no cookie can name."""
    for path in config.all_directories:
        require_cookie_path(path)
    return Cookie(
        bookie_id=bookie_id,
        journal_directories=config.journal_directories,
        ledger_directories=config.ledger_directories,
        index_directories=config.index_directories or None,
        instance_id=instance_id,
    )


def require_cookie_path(path: str) -> None:
    """ConfigurationError for a folder that no cookie can name."""
    if not _SEPARATORS.isdisjoint(path) or path != path.strip() or not _is_text(path):
        raise ConfigurationError(
            f"directory {path!r} cannot be written in a cookie: it must be UTF-8 without commas, tabs, newlines "
            "and surrounding blanks"
        )


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def decide(evidence: Evidence, *, is_loss_accepted: bool = False) -> CookieDecision:
    """Whether a bookie may use its folders; CookieError with the doctor's sentence says why not.

    ``is_loss_accepted``: an emptied folder alone is no reason (dataIntegrityStampMissingCookies, storage section 9.4).
    """
    finding = diagnose(evidence)
    if finding is not None and finding.cause is Cause.EMPTIED_VOLUME and is_loss_accepted:
        finding = diagnose_loss(evidence)
        if finding is None:
            return CookieDecision.REFILL
    if finding is not None:
        raise cookie_error(finding)
    if evidence.stored is None:
        return CookieDecision.STAMP
    return CookieDecision.EXPAND if is_expansion(evidence) else CookieDecision.BOOT


def cookie_error(finding: CookieFinding) -> CookieError:
    """A finding as the error that keeps a bookie from starting."""
    return CookieError(
        f"{finding.sentence} (run bkctl cookie verify with the same settings to see the differences and the fix)"
    )


async def require_no_ledgers(
    check: CookieCheck, store: MetadataStore, ledgers: LedgerStore, *, is_loss_accepted: bool = False
) -> CookieCheck:
    """The check with the ledgers counted.

    CookieError when ledgers name a bookie that would be stamped as a new one, or has a folder with nothing in it:
    folders and cookie would then both be lost, or a VERSION file was put back on an emptied disk, and nothing else
    tells of it: the bookie would deny entries that it once acknowledged, and a recovery would cut them off
    (replication section 13, bk#2612). Reads all ledger metadata, once in the life of a bookie unless its first starts
    are cut off. Ledgers that cannot be read count for nothing here.
    """
    bookie_id = check.evidence.bookie_id
    references = await find_references(store, ledgers, [bookie_id])
    logger.info(
        "bookie %s has empty directories: checked %d ledgers for references to it",
        bookie_id,
        references.ledgers_scanned,
    )
    evidence = msgspec.structs.replace(check.evidence, ledgers_naming=references.counts)
    return CookieCheck(decide(evidence, is_loss_accepted=is_loss_accepted), evidence, check.stored_version)


async def require_same_cookie(store: CookieStore, config: StorageConfig, cookie: Cookie) -> None:
    """RegistrationError unless the stored cookie is still the one that this process started with.

    Directories are compared as ``CookieCheckService`` compares them: by where they are, however they are spelled.

    A bookie that was silent for a while may have been decommissioned meanwhile; then no ledger may be placed on it.
    """
    bookie_id = cookie.bookie_id
    advice = "stopping; run bkctl cookie verify with the same settings to see what to do"
    try:
        stored = await store.find(bookie_id)
    except MetadataFormatError as error:
        raise RegistrationError(f"cannot read the stored cookie of bookie {bookie_id} ({error}): {advice}") from error
    known = None if stored is None else spelled_as(config, stored.value)
    if known is None:
        raise RegistrationError(
            f"bookie {bookie_id} no longer has a cookie: it was decommissioned, or its cookie was deleted: {advice}"
        )
    differences = ", ".join(difference.field for difference in cookie.differences(known))
    if differences:
        raise RegistrationError(
            f"the cookie of bookie {bookie_id} changed since this process started ({differences}): {advice}"
        )


class RunBlocking(Protocol):
    """Runs a function that may take long outside of the event loop: a lane, or ``asyncio.to_thread``."""

    def __call__(self, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        """Its result."""


class CookieCheckService:
    """Gathers what decides whether a bookie may use its folders; changes nothing."""

    def __init__(
        self,
        file_system: FileSystem,
        config: StorageConfig,
        store: CookieStore,
        run_blocking: RunBlocking,
        *,
        is_expansion_allowed: bool = False,
        is_loss_accepted: bool = False,
    ) -> None:
        self._file_system = file_system
        self._config = config
        self._store = store
        self._run_blocking = run_blocking
        self._is_expansion_allowed = is_expansion_allowed
        self._is_loss_accepted = is_loss_accepted

    async def check(self, expected: Cookie, former_ids: Collection[str] = ()) -> CookieCheck:
        """Check all folders and the stored cookies; CookieError says why they cannot be used.

        ``former_ids``: other ids that this host's settings could have given the bookie.
        """
        evidence, version = await self.gather(expected, former_ids)
        return CookieCheck(decide(evidence, is_loss_accepted=self._is_loss_accepted), evidence, version)

    async def gather(self, expected: Cookie, former_ids: Collection[str] = ()) -> tuple[Evidence, int | None]:
        """Everything but registrations and ledgers, and the version of the stored cookie; MetadataUnavailableError."""
        folders = tuple(map(self._read_folder, self._config.all_directories))
        stored, damage, version = await self._find(expected.bookie_id)
        named = {folder.cookie.bookie_id for folder in folders if folder.cookie is not None}
        evidence = Evidence(
            expected=expected,
            stored=spelled_as(self._config, stored),
            stored_damage=damage,
            folders=folders,
            other_cookies=await self._others({*named, *former_ids} - {expected.bookie_id}),
            former_ids=former_ids,
            places={folder.path: place_of(self._config, folder.path) for folder in folders},
            is_expansion_allowed=self._is_expansion_allowed,
        )
        if _depends_on_ledgers(evidence):
            # Reads whole journals: only where the answer decides.
            folders = await self._run_blocking(self._look, folders)
            evidence = msgspec.structs.replace(evidence, folders=folders)
        return evidence, version

    def _read_folder(self, path: str) -> FolderState:
        state = read_folder(self._file_system, path)
        return msgspec.structs.replace(state, cookie=spelled_as(self._config, state.cookie))

    async def _find(self, bookie_id: str) -> tuple[Cookie | None, str | None, int | None]:
        try:
            found = await self._store.find(bookie_id)
        except MetadataFormatError as error:
            try:
                node = await self._store.read_node(bookie_id)
            except NoNodeError:
                return None, None, None
            return None, str(error), node.stat.version
        return (None, None, None) if found is None else (found.value, None, found.version)

    async def _others(self, bookie_ids: Collection[str]) -> Mapping[str, Cookie]:
        found = {}
        for bookie_id in sorted(filter(is_valid_bookie_id, bookie_ids)):
            cookie, _, _ = await self._find(bookie_id)
            if cookie is not None:
                found[bookie_id] = cookie
        return found

    def _look(self, folders: tuple[FolderState, ...]) -> tuple[FolderState, ...]:
        return tuple(
            look_for_ledgers(self._file_system, folder) if folder.trouble is None else folder for folder in folders
        )

    async def stamp_emptied(self, cookie: Cookie, stored_version: int | None) -> None:
        """Write the cookie into folders that were emptied, and into the store if it is gone from there, too.

        Only after it is noted that entries are at risk: a folder with a cookie looks as if nothing had happened.
        """
        self._write_everywhere(cookie)
        if stored_version is None:
            await self._store.create(cookie)
        logger.warning("bookie %s: directories are empty; restoring their data from other bookies", cookie.bookie_id)

    async def stamp(self, cookie: Cookie, stored_version: int | None) -> None:
        """Write the cookie of a new bookie (``stored_version`` None) or an expanded one: folders first, the store last.

        A crash between the two leaves folders that name the bookie and no stored cookie, or the old one: as nothing
        else is in them, the next start stamps them again. BadVersionError, NodeExistsError when somebody else wrote the
        cookie meanwhile; OSError.
        """
        self._write_everywhere(cookie)
        if stored_version is None:
            await self._store.create(cookie)
            logger.info("created cookie for new bookie %s", cookie.bookie_id)
        else:
            await self._store.write(cookie, stored_version)
            logger.warning("bookie %s has no ledgers: added its new directories to the cookie", cookie.bookie_id)

    def _write_everywhere(self, cookie: Cookie) -> None:
        data = encode_cookie(cookie)
        for path in self._config.all_directories:
            write_version(self._file_system, path, data)


def _depends_on_ledgers(evidence: Evidence) -> bool:
    """Whether settings, cookies or places differ, so that it matters what the folders hold."""
    return any(map(evidence.expected.differences, evidence.known_cookies)) or bool(evidence.misplaced_folders)

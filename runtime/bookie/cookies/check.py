"""The check at boot that these directories belong to this bookie of this cluster. Source: metadata section 7.3.

Collects the state on disk and in the metadata store; ``doctor`` judges it. A directory without a cookie is accepted
only if nothing else indicates that it once had data.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from bkctl.runtime.bookie.cookies.directories import (
    DirectoryState,
    look_for_ledgers,
    place_of,
    read_directory,
    spelled_as,
    write_version,
)
from bkctl.runtime.bookie.cookies.doctor import diagnose, diagnose_loss
from bkctl.runtime.bookie.cookies.evidence import Cause, Evidence, is_expansion
from bkctl.runtime.errors import ConfigurationError, CookieError, MetadataFormatError, NoNodeError, RegistrationError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore, encode_cookie
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.ledgers.stored_ledgers import find_references
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.storage.config import StorageConfig
from bkctl.storage.ports import FileSystem

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_SEPARATORS = frozenset("\t\n\r,")
"""The cookie format separates directories by these, so no name may contain one."""


class CookieDecision(enum.Enum):
    """What to do with directories that may be used."""

    BOOT = "all cookies are present and match"
    STAMP = "new bookie: write the cookie everywhere"
    EXPAND = "a bookie without ledgers has additional directories: write the cookie everywhere"
    REFILL = "directories are empty: record that, then write the cookie everywhere"


class CookieCheck(msgspec.Struct, frozen=True):
    """A decision, the evidence for it, and the version of the stored cookie (None: there is none)."""

    decision: CookieDecision
    evidence: Evidence
    stored_version: int | None

    @property
    def depends_on_references(self) -> bool:
        """Whether the decision is valid only if no ledger references the bookie: ``require_no_ledgers``."""
        if self.decision is CookieDecision.REFILL:
            return False
        return self.decision is CookieDecision.STAMP or bool(self.evidence.bare_directories)


def expected_cookie(config: StorageConfig, bookie_id: str, instance_id: str | None) -> Cookie:
    """The cookie that follows from the settings; ConfigurationError as in ``require_cookie_path``."""
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
    """ConfigurationError for a directory whose name cannot be written in a cookie."""
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
    """What to do with the directories; CookieError with the doctor's finding if the bookie may not use them.

    ``is_loss_accepted``: empty directories alone are allowed (dataIntegrityStampMissingCookies, storage section 9.4).
    """
    finding = diagnose(evidence)
    if finding is not None and finding.cause is Cause.EMPTIED_VOLUME and is_loss_accepted:
        finding = diagnose_loss(evidence)
        if finding is None:
            return CookieDecision.REFILL
    if finding is not None:
        advice = "run bkctl cookie verify with the same settings to see the differences and the fix"
        raise CookieError(f"{finding.sentence} ({advice})")
    if evidence.stored is None:
        return CookieDecision.STAMP
    return CookieDecision.EXPAND if is_expansion(evidence) else CookieDecision.BOOT


async def require_no_ledgers(
    check: CookieCheck, store: MetadataStore, ledgers: LedgerStore, *, is_loss_accepted: bool = False
) -> CookieCheck:
    """Repeat the decision with the number of ledgers that reference the bookie.

    CookieError if ledgers reference a bookie that would be stamped as new, or that has an empty directory: directories
    and cookie may both be lost, or a VERSION file was restored on an emptied disk. Nothing else would show this. The
    bookie would deny entries that it acknowledged, and a recovery would truncate their ledgers there (replication
    section 13, bk#2612). Reads all ledger metadata, once in the life of a bookie unless its first starts are
    interrupted. Unreadable ledgers are not counted.
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

    Directories are compared as in ``CookieCheckService``: by location, however they are spelled.

    A bookie whose session was lost for a while may have been decommissioned; then no ledger may be placed on it.
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
    """Runs a slow function outside of the event loop: a lane, or ``asyncio.to_thread``."""

    def __call__(self, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        """The result of the function."""


class CookieCheckService:
    """Collects the evidence on whether a bookie may use its directories; changes nothing."""

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
        """Check all directories and the stored cookies; CookieError says why they cannot be used.

        ``former_ids``: other ids that this host's settings could have given the bookie.
        """
        evidence, version = await self.gather(expected, former_ids)
        return CookieCheck(decide(evidence, is_loss_accepted=self._is_loss_accepted), evidence, version)

    async def gather(self, expected: Cookie, former_ids: Collection[str] = ()) -> tuple[Evidence, int | None]:
        """Evidence without registrations and ledgers; version of the stored cookie. MetadataUnavailableError."""
        directories = tuple(map(self._read_directory, self._config.all_directories))
        stored, damage, version = await self._find(expected.bookie_id)
        named = {directory.cookie.bookie_id for directory in directories if directory.cookie is not None}
        evidence = Evidence(
            expected=expected,
            stored=spelled_as(self._config, stored),
            stored_damage=damage,
            directories=directories,
            other_cookies=await self._others({*named, *former_ids} - {expected.bookie_id}),
            former_ids=former_ids,
            places={directory.path: place_of(self._config, directory.path) for directory in directories},
            is_expansion_allowed=self._is_expansion_allowed,
        )
        if _depends_on_ledgers(evidence):
            # Reads whole journals, so only if the result matters.
            directories = await self._run_blocking(self._with_traces, directories)
            evidence = msgspec.structs.replace(evidence, directories=directories)
        return evidence, version

    def _read_directory(self, path: str) -> DirectoryState:
        state = read_directory(self._file_system, path)
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

    def _with_traces(self, directories: tuple[DirectoryState, ...]) -> tuple[DirectoryState, ...]:
        return tuple(
            look_for_ledgers(self._file_system, directory) if directory.trouble is None else directory
            for directory in directories
        )

    async def stamp_emptied(self, cookie: Cookie, stored_version: int | None) -> None:
        """Write the cookie to emptied directories, and to the store if it is missing there, too.

        Call this only after recording that entries are at risk: a directory with a cookie looks undamaged.
        """
        self._write_everywhere(cookie)
        if stored_version is None:
            await self._store.create(cookie)
        logger.warning("bookie %s: directories are empty; restoring their data from other bookies", cookie.bookie_id)

    async def stamp(self, cookie: Cookie, stored_version: int | None) -> None:
        """Write the cookie of a new or expanded bookie: first to the directories, then to the store.

        ``stored_version`` None: a new bookie. After a crash in between, the directories have the cookie and the store
        has none or the old one: as they are otherwise empty, the next start stamps them again. OSError;
        BadVersionError, NodeExistsError: another process wrote the cookie.
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
    """Whether settings, cookies or places differ, so that it matters whether directories have ledger data."""
    return any(map(evidence.expected.differences, evidence.known_cookies)) or bool(evidence.misplaced_directories)

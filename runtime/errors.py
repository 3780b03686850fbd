"""Errors of the runtime floor, by what they mean to whoever must act on them.

BkctlError
├── ConfigurationError          a setting is wrong
│   └── PortInUseError          another process listens there
├── RefusedError                a safety condition is not met; nothing was changed
├── ConflictError               somebody else holds it or changed it
├── ProtocolError               a peer sent bytes that are not the protocol
├── EntryDigestError            an entry body is damaged, or is not the entry that was asked for
├── MetadataError
│   ├── MetadataUnavailableError   no answer from the metadata store, or the session is gone
│   │   ├── SessionExpiredError    the session ended: its ephemeral nodes are gone
│   │   └── MetadataOutageError    a run waited for the metadata store as long as it may
│   ├── NoNodeError
│   ├── NodeExistsError
│   ├── BadVersionError         compare-and-set lost
│   ├── NotEmptyError
│   ├── MetadataAuthError       no permission
│   ├── MetadataFormatError     a node holds bytes that are not what they must be
│   └── ClusterNotFoundError    there is no BookKeeper cluster below this root
├── BookieError                 one bookie's answer, or the lack of one; carries bookie id and status
│   ├── NoSuchEntryError, NoSuchLedgerError      the two negatives: statements of fact
│   ├── FencedError, UnauthorizedError, BookieReadOnlyError, TooManyRequestsError
│   ├── BookieIOError, BadRequestError, UnknownLedgerStateError
│   ├── BookieTimeoutError, BookieUnavailableError
├── LedgerError
│   ├── LedgerNotFoundError, LedgerExistsError, LedgerClosedError, LedgerFencedError
│   ├── LedgerPasswordError, TooManyPendingAddsError
│   ├── NotEnoughBookiesError, DigestMismatchError, LedgerReadError, LedgerRecoveryError
├── BookieNotFoundError         no such bookie in this cluster
├── BookieFailedError           a bookie that served cannot go on, or could not flush at its end
├── CookieError                 folders, cookie and cluster do not belong together
└── RegistrationError           the bookie could not register
"""

from __future__ import annotations

from storage.errors import BkctlError


class ConfigurationError(BkctlError):
    """A setting is wrong or settings contradict each other."""


class PortInUseError(ConfigurationError):
    """The port is another process's."""


class RefusedError(BkctlError):
    """A safety condition is not met; nothing was changed."""


class ConflictError(BkctlError):
    """Somebody else holds the thing or changed it meanwhile."""


class ProtocolError(BkctlError):
    """A peer sent bytes that are not the protocol; the connection is closed."""


class EntryDigestError(BkctlError):
    """An entry body (or an explicit LAC packet) fails its digest, is too short, or belongs to another entry."""


class MetadataError(BkctlError):
    """The metadata store refused or failed; ``path`` names the znode where one is concerned."""

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class MetadataUnavailableError(MetadataError):
    """The metadata store did not answer in time, or the connection is lost."""


class SessionExpiredError(MetadataUnavailableError):
    """The session ended: its ephemeral nodes and locks are gone."""


class MetadataOutageError(MetadataUnavailableError):
    """A run waited for the metadata store as long as it may; the store still does not answer."""


class NoNodeError(MetadataError):
    """The znode, or its parent on a create, does not exist."""


class NodeExistsError(MetadataError):
    """The znode exists already."""


class BadVersionError(MetadataError):
    """The znode is not at the expected version."""


class NotEmptyError(MetadataError):
    """The znode still has children."""


class MetadataAuthError(MetadataError):
    """The session may not do this to the znode."""


class MetadataFormatError(MetadataError):
    """A znode holds bytes that are not what they must be."""


class ClusterNotFoundError(MetadataError):
    """There is no BookKeeper cluster below the ledgers root."""

    def __init__(self, root: str) -> None:
        super().__init__(f"there is no BookKeeper cluster at {root}: create one with bkctl cluster init", root)


class BookieError(BkctlError):
    """One bookie's answer other than OK, or the lack of one."""

    def __init__(self, bookie_id: str, message: str) -> None:
        super().__init__(f"bookie {bookie_id}: {message}")
        self.bookie_id = bookie_id


class NoSuchEntryError(BookieError):
    """The bookie states as a fact that it does not hold the entry."""


class NoSuchLedgerError(BookieError):
    """The bookie states as a fact that it does not hold the ledger."""


class FencedError(BookieError):
    """The ledger is fenced on this bookie."""


class UnauthorizedError(BookieError):
    """The master key is not the ledger's."""


class BookieReadOnlyError(BookieError):
    """The bookie takes no writes."""


class TooManyRequestsError(BookieError):
    """The bookie is at a limit; try later or elsewhere."""


class BookieIOError(BookieError):
    """The bookie could not read or write its disk."""


class BadRequestError(BookieError):
    """The bookie refused the request as malformed or unsupported."""


class UnknownLedgerStateError(BookieError):
    """The bookie may have lost entries of this ledger: neither yes nor no."""


class BookieTimeoutError(BookieError):
    """No answer in time."""


class BookieUnavailableError(BookieError):
    """No connection, or it was lost before the answer."""


class LedgerError(BkctlError):
    """An operation on a ledger failed; ``ledger_id`` is None when it was to be created and has no id yet."""

    def __init__(self, ledger_id: int | None, message: str) -> None:
        super().__init__(message if ledger_id is None else f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class LedgerNotFoundError(LedgerError):
    """The metadata store has no such ledger."""


class LedgerExistsError(LedgerError):
    """The ledger id is taken."""


class LedgerClosedError(LedgerError):
    """The ledger or the handle is closed: the add was not accepted, or is in doubt if it was pending."""


class LedgerFencedError(LedgerError):
    """Somebody recovers or recovered the ledger: this writer is done; pending adds are in doubt."""


class LedgerPasswordError(LedgerError):
    """The password is not the ledger's: by the metadata, or in the judgement of a bookie."""


class TooManyPendingAddsError(LedgerError):
    """The writer is at its limit of adds under way; nothing was sent, try again when some are acknowledged."""


class NotEnoughBookiesError(LedgerError):
    """Too few writable bookies for the ensemble."""


class DigestMismatchError(LedgerError):
    """No replica passes the digest check."""


class LedgerReadError(LedgerError):
    """An entry could not be read from any replica, or lies beyond what may be read."""


class LedgerRecoveryError(LedgerError):
    """The end of the ledger could not be established; it stays in recovery and can be tried again."""


class BookieNotFoundError(BkctlError):
    """No bookie of this id is known to the cluster."""


class BookieFailedError(BkctlError):
    """This process's own bookie, once it served: it cannot go on, or could not flush when it was to stop.

    What it acknowledged is in the journal, for the next boot to replay.
    """


class CookieError(BkctlError):
    """Folders, stored cookie and cluster do not belong together."""


class RegistrationError(BkctlError):
    """The bookie could not register with the metadata store."""

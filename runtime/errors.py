"""Errors of the runtime layer, by what they mean for the operator.

BkctlError
├── ConfigurationError          a setting is wrong
│   └── PortInUseError          another process listens on the port
├── RefusedError                a safety condition is not met; nothing was changed
├── ConflictError               another process has locked or changed it
│   └── LogTakenOverError       another process writes this log of ledgers now
├── AdminAccessError            no permission to use an admin interface
├── AuthenticationError         a login, a certificate, a role or a token was not accepted
├── ProtocolError               a peer violated the protocol
├── EntryDigestError            an entry body is damaged, or belongs to another entry
├── MetadataError
│   ├── MetadataUnavailableError   no answer from the metadata store, or the session is lost
│   │   ├── MetadataLoginError     the session ended in its login
│   │   ├── SessionExpiredError    the session ended: its ephemeral nodes are deleted
│   │   ├── MetadataClosedError    this process has closed the store
│   │   └── MetadataOutageError    a run has waited for the metadata store for its maximum time
│   ├── NoNodeError
│   ├── NodeExistsError
│   ├── BadVersionError         compare-and-set lost
│   ├── NotEmptyError
│   ├── MetadataAuthError       no permission
│   ├── MetadataFormatError     a node has invalid contents
│   └── ClusterNotFoundError    there is no BookKeeper cluster below this root
├── BookieError                 one bookie's answer, or no answer; has bookie id and status
│   ├── NoSuchEntryError, NoSuchLedgerError      the two negatives: these are proof, other errors are not
│   ├── FencedError, BookieReadOnlyError, TooManyRequestsError
│   ├── UnauthorizedError           the ledger's key is wrong
│   ├── AuthenticationRequiredError it did not look at the request: this proves nothing about the ledger
│   ├── BookieIOError, BadRequestError, UnknownLedgerStateError
│   ├── BookieTimeoutError, BookieUnavailableError
├── LedgerError
│   ├── LedgerNotFoundError, LedgerExistsError, LedgerClosedError, LedgerFencedError
│   ├── LedgerPasswordError, TooManyPendingAddsError, DuplicateEntryError
│   ├── NotEnoughBookiesError, DigestMismatchError, LedgerReadError
│   └── LedgerRecoveryError
│       └── AnswersMissingError    bookies that may have entries gave no valid answer
├── LogNotFoundError, LogExistsError, LogPositionError    of a log of ledgers
├── BookieNotFoundError         no such bookie in this cluster
├── BookieFailedError           a running bookie failed, or its last flush failed
├── CookieError                 directories, cookie and cluster do not belong together
└── RegistrationError           the bookie could not register
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from bkctl.storage.errors import BkctlError


class ConfigurationError(BkctlError):
    """A setting is wrong or settings contradict each other."""


class PortInUseError(ConfigurationError):
    """Another process listens on the port."""


class RefusedError(BkctlError):
    """A safety condition is not met; nothing was changed."""


class ConflictError(BkctlError):
    """Another process has locked or changed the object."""


class AdminAccessError(BkctlError):
    """The admin interface of a server requires another user, or another token."""


class AuthenticationError(BkctlError):
    """A login, a certificate, a role or a token was not accepted, by the other side or by this one."""


class ProtocolError(BkctlError):
    """A peer violated the protocol; the connection is closed."""


class EntryDigestError(BkctlError):
    """An entry body (or an explicit LAC packet) fails its digest, is too short, or belongs to another entry."""


class MetadataError(BkctlError):
    """The metadata store rejected an operation or failed; ``path``: the znode concerned, if any."""

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path

    def for_caller(self, paths: Sequence[str]) -> Self:
        """A new one for the caller of these nodes, if the request was also one of others: with a path of its own."""
        if self.path is None or self.path in paths:
            return type(self)(str(self), self.path)
        return type(self)(paths[0] + str(self).removeprefix(self.path), paths[0])


class MetadataUnavailableError(MetadataError):
    """The metadata store did not answer in time, or the connection is lost."""


class MetadataLoginError(MetadataUnavailableError):
    """The metadata store ended the session in its login, which may be refused."""


class SessionExpiredError(MetadataUnavailableError):
    """The session ended: its ephemeral nodes and locks are deleted."""


class MetadataOutageError(MetadataUnavailableError):
    """The metadata store did not answer within the maximum time that a run waits for it."""


class MetadataClosedError(MetadataUnavailableError):
    """This process has closed the metadata store: to wait for it would not help."""


class NoNodeError(MetadataError):
    """The znode, or its parent on a create, does not exist."""


class NodeExistsError(MetadataError):
    """The znode already exists."""


class BadVersionError(MetadataError):
    """The znode is not at the expected version."""


class NotEmptyError(MetadataError):
    """The znode still has children."""


class MetadataAuthError(MetadataError):
    """The session has no permission for this operation on the znode; of its parent, to create or delete it."""

    def for_caller(self, paths: Sequence[str]) -> Self:
        """As in the base class."""
        return super().for_caller([*paths, *(each.rpartition("/")[0] for each in paths)])


class MetadataFormatError(MetadataError):
    """A znode has invalid contents."""


class ClusterNotFoundError(MetadataError):
    """There is no BookKeeper cluster below the ledgers root, in ZooKeeper or in a snapshot file."""

    def __init__(
        self, root: str, snapshot_path: str | None = None, remedy: str = "create one with bkctl cluster init"
    ) -> None:
        where = ""
        if snapshot_path is not None:
            where, remedy = f" in {snapshot_path}", "use --ledgers-root for another root"
        super().__init__(f"there is no BookKeeper cluster at {root}{where}: {remedy}", root)


class BookieError(BkctlError):
    """One bookie's answer other than OK, or no answer."""

    def __init__(self, bookie_id: str, message: str) -> None:
        super().__init__(f"bookie {bookie_id}: {message}")
        self.bookie_id = bookie_id


class NoSuchEntryError(BookieError):
    """The bookie reports that it does not have the entry; this is proof."""


class NoSuchLedgerError(BookieError):
    """The bookie reports that it does not have the ledger; this is proof."""


class FencedError(BookieError):
    """The ledger is fenced on this bookie."""


class UnauthorizedError(BookieError):
    """The master key is not the ledger's."""


class AuthenticationRequiredError(BookieError):
    """The bookie answers only clients that authenticate themselves.

    ``is_expired``: this client's certificate has expired, so each bookie refuses the next connection.
    """

    def __init__(self, bookie_id: str, message: str, *, is_expired: bool = False) -> None:
        super().__init__(bookie_id, message)
        self.is_expired = is_expired


class BookieReadOnlyError(BookieError):
    """The bookie accepts no writes."""


class TooManyRequestsError(BookieError):
    """The bookie is at a limit; retry later or use another bookie."""


class BookieIOError(BookieError):
    """The bookie could not read or write its disk."""


class BadRequestError(BookieError):
    """The bookie rejected the request as malformed or unsupported."""


class UnknownLedgerStateError(BookieError):
    """The bookie may have lost entries of this ledger, so it cannot say whether the entry exists."""


class BookieTimeoutError(BookieError):
    """No answer in time."""


class BookieUnavailableError(BookieError):
    """There is no connection, or it was lost before the answer."""


class ClientClosedError(BookieUnavailableError):
    """There is no connection because this client was closed: no further request can succeed."""


SILENCE = (BookieTimeoutError, BookieUnavailableError)
"""No answer: it proves nothing about the copy, so another attempt is worthwhile."""


class LedgerError(BkctlError):
    """An operation on a ledger failed; ``ledger_id`` is None for a new ledger that has no id yet."""

    def __init__(self, ledger_id: int | None, message: str) -> None:
        super().__init__(message if ledger_id is None else f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class LedgerNotFoundError(LedgerError):
    """The metadata store has no such ledger."""


class LedgerExistsError(LedgerError):
    """The ledger id is already in use."""


class LedgerClosedError(LedgerError):
    """The ledger or the handle is closed: the add was rejected, or is in doubt if it was pending."""


class LedgerFencedError(LedgerError):
    """Another client recovers or has recovered the ledger: this writer has ended; pending adds are in doubt."""


class LedgerPasswordError(LedgerError):
    """The password is wrong, according to the metadata or to a bookie."""


class TooManyPendingAddsError(LedgerError):
    """The writer has the maximum number of adds in flight. Nothing was sent; retry once some are acknowledged."""


class DuplicateEntryError(LedgerError):
    """The writer has used this entry id already. Nothing was sent."""


class NotEnoughBookiesError(LedgerError):
    """Too few writable bookies for the ensemble."""


class DigestMismatchError(LedgerError):
    """No replica passes the digest check."""


class LedgerReadError(LedgerError):
    """An entry could not be read from any replica, or is above the last entry that may be read."""


class LedgerRecoveryError(LedgerError):
    """The end of the ledger could not be determined. The ledger stays in recovery; a retry is possible."""


class AnswersMissingError(LedgerRecoveryError):
    """Bookies that may have entries of the ledger gave no valid answer.

    ``entry_id``: the entry in doubt; None if too few bookies answered the fence. ``missing``: why, by bookie.
    ``fenced``: bookies that have fenced the ledger. ``is_refused``: all that are missing refuse this client.
    """

    def __init__(
        self,
        ledger_id: int,
        message: str,
        *,
        entry_id: int | None = None,
        missing: Mapping[str, str],
        fenced: Collection[str] = (),
        is_refused: bool = False,
    ) -> None:
        super().__init__(ledger_id, message)
        self.is_refused = is_refused
        self.entry_id = entry_id
        self.missing = dict(missing)
        self.fenced = tuple(sorted(fenced))


class LogNotFoundError(BkctlError):
    """There is no log of ledgers with this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no log {name}: bkctl log list shows all logs")


class LogExistsError(BkctlError):
    """There is a log of ledgers with this name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"log {name} exists already; nothing was changed")


class LogPositionError(BkctlError):
    """A log of ledgers has no entry at this position, or no longer."""


class LogTakenOverError(ConflictError):
    """Another process opened the log for writing, so this one no longer can write it."""

    def __init__(self, name: str, own_name: str, other_name: str | None) -> None:
        who = "it is being deleted" if other_name is None else f"{other_name} took over"
        super().__init__(f"log {name}: {own_name} is no longer its writer: {who}; entries not acknowledged may be lost")


class BookieNotFoundError(BkctlError):
    """The cluster has no bookie with this id; ``bookie_id`` None: none was given."""

    def __init__(self, sentence: str, bookie_id: str | None = None) -> None:
        super().__init__(sentence)
        self.bookie_id = bookie_id


class BookieFailedError(BkctlError):
    """The bookie of this process failed while serving, or could not flush at its stop.

    Acknowledged entries are in the journal, which the next boot replays.
    """


class CookieError(BkctlError):
    """Directories, stored cookie and cluster do not belong together."""


class RegistrationError(BkctlError):
    """The bookie could not register with the metadata store."""

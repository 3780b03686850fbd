"""Ports of the runtime layer. The port of the metadata store is in ``bkctl.runtime.metadata.store``.

Real adapters: ``LoopClock`` and ``LaneWorkers`` in ``bkctl.runtime.net.loop``, ``BookiePool`` in
``bkctl.runtime.net.pool``, ``OsHost`` and ``listen_tcp`` in ``bkctl.runtime.net.host``, ``Systemd`` in
``bkctl.runtime.net.systemd``. A simulator implements the same protocols.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from bkctl.runtime.errors import BookieError
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.messages import BookieAnswer, BookieCall, LongPollAnswer, LongPollRead
from bkctl.runtime.protocol.status import Status

P = ParamSpec("P")
T = TypeVar("T")

BookieId: TypeAlias = str
AddDone: TypeAlias = Callable[[Status], None]
"""Called once, on the loop, with the outcome of one add on one bookie."""
BodyOrStatus: TypeAlias = bytes | Status
"""The body of an entry as stored, or why there is none; the status is never OK."""


class TimerHandle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback; safe to repeat."""


class Clock(Protocol):
    """Time, timers and randomness."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, UTC."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that never goes backwards."""

    async def sleep(self, seconds: float) -> None:
        """Sleep without blocking the loop."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Run ``callback`` on the loop after ``seconds``."""

    @property
    def random(self) -> random.Random:
        """The only source of randomness."""


class Workers(Protocol):
    """Lanes for blocking work: jobs of one lane run one after another, different lanes run in parallel."""

    def run(self, lane: str, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> Awaitable[T]:
        """Run a job in a lane. Do not change arguments until it is done. Cancelling does not stop a started job."""

    async def run_at_rest(self, lanes: Sequence[str], lane: str, job: Callable[[], T]) -> T:
        """Run ``job`` in ``lane`` while none of ``lanes`` runs anything.

        Only for jobs of at most about a second. The job runs to its end even if the caller is cancelled.
        """

    def wait(self, seconds: float) -> None:
        """Block the calling job and its lane."""

    async def close(self) -> None:
        """Finish the queued jobs, then end the lanes."""


class Host(Protocol):
    """Names, addresses, ports and limits of this machine. All methods may block."""

    def name(self) -> str:
        """Host name of this machine."""

    def user(self) -> str:
        """Name of the user of the system that runs this process; its number if it has no name."""

    def canonical_name(self) -> str:
        """Name of this machine as a Java process writes it to a lock."""

    def address_of(self, name: str) -> str:
        """IPv4 address of a host; OSError, UnicodeError for text that cannot be a host name."""

    def name_of(self, address: str) -> str:
        """Host name of an address; OSError."""

    def address_of_interface(self, interface: str) -> str:
        """First IPv4 address of a network interface; OSError."""

    def describe_owner(self, port: int) -> str:
        """The process that listens on a port, for error messages: "process 4711 (java)", or "another process"."""

    def open_files_max(self) -> int | None:
        """How many files and connections this process may have open; None: no limit."""


class ServiceManager(Protocol):
    """The program that runs this process as a service, such as systemd."""

    @property
    def is_present(self) -> bool:
        """Whether there is one. If not, nothing is sent."""

    @property
    def watchdog_s(self) -> float | None:
        """How long it waits for WATCHDOG=1 before it restarts this process; None: forever."""

    def notify(self, **fields: str | int) -> None:
        """Report the state of this process, in the fields of sd_notify(3). Never blocks or fails."""


class ListeningSocket(Protocol):
    """An open socket that accepts connections."""

    def close(self) -> None:
        """Stop accepting connections; open ones stay. Safe to repeat."""


class ListeningPort(ListeningSocket, Protocol):
    """An open TCP port that accepts connections."""

    @property
    def port(self) -> int:
        """The port number."""


class Listen(Protocol):
    """Opens a TCP port."""

    async def __call__(self, accept: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> ListeningPort:
        """Listen on ``host`` (None: all addresses) and ``port`` (0: a free one); OSError.

        ``accept`` creates the protocol of each new connection.
        """


class ListenLocal(Protocol):
    """Opens a unix socket for this user."""

    async def __call__(self, accept: Callable[[], asyncio.BaseProtocol], path: str) -> ListeningSocket:
        """Listen on the socket ``path``, whose directory belongs to the caller; OSError, ConfigurationError."""


class ReadReply(msgspec.Struct, frozen=True, gc=False):
    """A positive answer to a read: the entry body as stored, and the highest LAC the bookie knows (None: not sent)."""

    body: bytes
    max_last_add_confirmed: int | None


class LacReply(msgspec.Struct, frozen=True, gc=False):
    """One bookie's data about a ledger's end: explicit LAC packet and body of its last entry (or None)."""

    lac_body: bytes | None
    last_entry_body: bytes | None


class PollReply(msgspec.Struct, frozen=True, gc=False):
    """What ended a long poll: the highest LAC the bookie knows (None: not sent), and an entry if one came with it."""

    max_last_add_confirmed: int | None
    body: bytes | None


class BookieInfo(msgspec.Struct, frozen=True, gc=False):
    """Disk space of a bookie's ledger directories in bytes."""

    total_bytes: int
    free_bytes: int


class Bookies(Protocol):
    """Requests to bookies, by id. Every request ends with an answer, TIMEOUT or UNAVAILABLE.

    Requests to one bookie about one ledger are sent in the order of the calls (protocol section 8, channels).
    """

    def add(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        done: AddDone,
        *,
        is_recovery_add: bool = False,
        is_high_priority: bool = False,
        is_deferred_sync: bool = False,
    ) -> None:
        """Send an add. ``done`` is called later with the outcome, never inside this call.

        ``is_deferred_sync``: the entry is durable only after ``force``.
        """

    def force(self, bookie_id: BookieId, ledger_id: int) -> asyncio.Future[None]:
        """Sync what the bookie has answered of a ledger; needs no key, ignores fences (wire 5.8).

        The future fails with the BookieError of the status.
        """

    def losses(self, bookie_id: BookieId) -> int:
        """How often the connection to a bookie ended. Since then it may have restarted, without what was not synced."""

    def read(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        fence_with: bytes | None = None,
        is_high_priority: bool = False,
    ) -> asyncio.Future[ReadReply]:
        """Read an entry, or the last stored one for -1; ``fence_with`` (master key) fences the ledger first.

        The future fails with the BookieError of the status. The digest is not checked here.
        """

    def read_lac(self, bookie_id: BookieId, ledger_id: int) -> asyncio.Future[LacReply]:
        """Ask for the explicit LAC packet and the last stored entry; fences nothing, needs no key (wire 5.6).

        The future fails with the BookieError of the status. The digests are not checked here.
        """

    def write_lac(
        self, bookie_id: BookieId, ledger_id: int, master_key: bytes, lac: int, lac_body: bytes
    ) -> asyncio.Future[None]:
        """Store an explicit LAC packet, which wakes the polls that wait for it (wire 5.5 and 8.4).

        The future fails with the BookieError of the status.
        """

    def poll(
        self, bookie_id: BookieId, ledger_id: int, previous_lac: int, timeout_s: float
    ) -> asyncio.Future[PollReply]:
        """Wait until the bookie knows a LAC above ``previous_lac``, at most ``timeout_s``; fences nothing (wire 5.4).

        An entry in the answer is ``previous_lac`` + 1. A bookie without long polls answers at once with its last entry.
        The future fails with the BookieError of the status. The digest is not checked here.
        """

    def list_entries(self, bookie_id: BookieId, ledger_id: int) -> asyncio.Future[EntryList]:
        """Ask which entries of a ledger the bookie has, by its index; fences nothing, needs no key (wire 5.9).

        The future fails with the BookieError of the status. Java's DbLedgerStorage never answers, which is a timeout.
        """

    def read_many(
        self, bookie_id: BookieId, ledger_id: int, entry_ids: Sequence[int], *, bytes_max: int
    ) -> asyncio.Future[list[BodyOrStatus]]:
        """Read entries of one ledger; ids must not be negative. Fences nothing.

        The result is not empty, and is for the first of ``entry_ids``, in their order: the bookie may answer fewer than
        requested; ask again for the others. Consecutive ids may travel as one request, whose answer then has at most
        ``bytes_max`` bytes unless the first entry alone has more.

        The future never fails: a lost connection and a timeout are statuses, of each entry without an answer. It may be
        cancelled. The digests are not checked here.
        """

    def add_many(
        self,
        bookie_id: BookieId,
        ledger_id: int,
        master_key: bytes,
        adds: Sequence[tuple[int, bytes]],
        *,
        is_recovery_add: bool = False,
    ) -> asyncio.Future[list[Status]]:
        """Send adds of one ledger: entry ids, which must not be negative, with their bodies.

        The result is the status of each, in their order. The future never fails and may be cancelled; the adds are then
        in doubt.
        """

    async def info(self, bookie_id: BookieId) -> BookieInfo:
        """Disk space; raises BookieError."""

    def error_of(self, status: Status, bookie_id: BookieId, detail: str = "") -> BookieError:
        """The error of a status other than OK that a request to this bookie ended with, with its reason if known."""

    async def close(self) -> None:
        """Fail pending requests with UNAVAILABLE and close all connections."""


class Responder(Protocol):
    """Receives the answers to calls: the connection from which they came. Called on the loop.

    Each call is answered once; a run of adds may be answered in parts (``AddRun.cut``). Answers may come in any order.
    Answers to a lost connection are dropped.
    """

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        """Answer a call with a status, or with the requested data."""


class RequestSource(Responder, Protocol):
    """A connection whose long polls can wait."""

    def suspend(self, call: LongPollRead, drop: Callable[[], None]) -> bool:
        """Let a poll give up its turn, until ``resume``. False if too many wait: answer it now.

        ``drop`` is called if the connection is lost before that.
        """

    def resume(self, call: LongPollRead) -> None:
        """Hand a poll to the handler again, when its turn comes. Not inside ``handle``."""


class RequestHandler(Protocol):
    """Handles the calls to a bookie. Called on the loop, once per call.

    Reads wait for their turn; all other calls come in the order of their arrival.

    It must not wait; it answers through the connection now or later. Ids may be negative. If ``handle`` raises, the
    call is not answered; of a run of adds, the adds that remain in it.
    """

    def handle(self, connection: RequestSource, call: BookieCall) -> None:
        """Execute the call and answer it."""

    def find_in_memory(
        self, ledger_id: int, entry_ids: Sequence[int], *, wants_lac: bool
    ) -> tuple[list[bytes | None], int | None]:
        """Bodies of entries that are in memory, whose reads need not wait, and the LAC of their ledger if it is wanted
        and known. None: the entry may still be on disk."""

    def poll_memory(self, call: LongPollRead) -> LongPollAnswer | None:
        """The answer to a poll that need not wait, and whose entry is in memory."""

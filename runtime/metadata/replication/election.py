"""Election of the one auditor. Source: metadata section 11.

Votes are numbered ephemeral nodes; the lowest wins, each other candidate watches the one before it. Unlike Java's, our
auditor watches its own vote too: when an operator deletes it, the next candidate takes over, and ours steps down.

Pulsar's metadata driver has a separate election. Its auditor is the process that created the ephemeral node
``leader``. A cluster can have an auditor of each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import msgspec

from bkctl.runtime.errors import ConflictError, MetadataFormatError, NodeExistsError, NoNodeError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.paths import PULSAR_AUDITOR, VOTE_PREFIX, Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames, UnderReplicationTree
from bkctl.runtime.metadata.replication.format import (
    decode_pulsar_auditor,
    decode_vote,
    encode_vote,
    parse_vote_name,
)
from bkctl.runtime.metadata.store import (
    ANY_VERSION,
    MetadataStore,
    Node,
    Watch,
    children_of,
    find_node,
    read_or_problem,
)

logger = logging.getLogger(__name__)

SEQUENCE_MAX = 2**31 - 1
"""Maximum of ZooKeeper's count of children (metadata section 12.2)."""

_ATTEMPTS_MAX = 20


class Candidate(msgspec.Struct, frozen=True):
    """A vote; ``bookie_id`` is None when its bytes cannot be read, and ``problem`` is the reason.

    ``vote`` is the name of its node, ``leader`` for Pulsar's auditor.
    """

    vote: str
    bookie_id: str | None
    session_id: int
    since_ms: int
    problem: MetadataFormatError | None = None

    @property
    def is_pulsar(self) -> bool:
        """Whether Pulsar's metadata driver elected it."""
        return self.vote == PULSAR_AUDITOR


class AuditorElection:
    """One process in the election, one campaign at a time.

    ``on_stepped_down`` is called on the loop with the reason, immediately when an elected process is deposed; not for
    ``resign``.
    """

    def __init__(self, store: MetadataStore, root: str, bookie_id: str, on_stepped_down: Callable[[str], None]) -> None:
        assert is_valid_bookie_id(bookie_id), "an invalid name in a vote breaks Java tools"
        self._store = store
        self._directory = Paths(root).auditor_election
        self._tree = UnderReplicationTree(store, root)
        self._foreign = ForeignNames()
        self._payload = encode_vote(bookie_id)
        self._on_stepped_down = on_stepped_down
        self._vote: str | None = None
        self._is_vote_in_doubt = False
        self._is_elected = False
        self._own_vote_watch: Watch | None = None
        store.on_session_lost(self._note_session_lost)

    @property
    def is_elected(self) -> bool:
        """Whether this process is the auditor, as far as it can know."""
        return self._is_elected

    async def campaign(self) -> None:
        """Return when elected. While other candidates are ahead, this waits without an operation.

        A vote that disappears meanwhile, with its session or deleted by hand, is cast again. MetadataUnavailableError:
        call again; a vote whose answer was lost is found. ClusterNotFoundError.
        """
        assert not self._is_elected, "already elected"
        while True:
            changed = asyncio.Event()
            vote = self._vote or await self._cast_vote(changed)
            votes = await self._votes() if vote is not None else []
            if vote is None:
                await changed.wait()
            elif vote not in votes:
                self._vote = None
            elif vote == votes[0]:
                if await self._take_office(vote):
                    return
            elif await self._store.exists(self._path(votes[votes.index(vote) - 1]), changed.set) is not None:
                await changed.wait()

    async def resign(self) -> None:
        """Leave the election, elected or not; repeatable. MetadataError: the vote may remain until the session ends."""
        self._leave_office()
        if self._is_vote_in_doubt:
            await self._find_own_vote()
        vote, self._vote = self._vote, None
        if vote is None:
            return
        self._is_vote_in_doubt = True
        with contextlib.suppress(NoNodeError):
            await self._store.delete(self._path(vote))
        self._is_vote_in_doubt = False

    async def _cast_vote(self, changed: asyncio.Event) -> str | None:
        """Name of our vote; None while another candidate has the last possible number: wait for ``changed``."""
        if self._is_vote_in_doubt and await self._find_own_vote():
            return self._vote
        self._is_vote_in_doubt = True  # until there is an answer
        try:
            path = await self._create_vote()
        except NodeExistsError:
            # At the maximum the count no longer changes: only one candidate at a time can have a vote.
            self._is_vote_in_doubt = False
            if any(parse_vote_name(name) == SEQUENCE_MAX for name in await self._names(changed.set)):
                logger.warning("%s: the numbers of votes are used up; waiting for the last one", self._directory)
            else:
                changed.set()
            return None
        self._is_vote_in_doubt = False
        self._vote = path.rpartition("/")[2]
        return self._vote

    async def _create_vote(self) -> str:
        while True:
            try:
                return await self._store.create(
                    self._path(VOTE_PREFIX), self._payload, is_ephemeral=True, is_sequential=True
                )
            except NoNodeError:
                await self._tree.create_root()
                with contextlib.suppress(NodeExistsError, NoNodeError):
                    await self._store.create(self._directory)

    async def _find_own_vote(self) -> bool:
        """After a lost answer: the first vote of this session with our bookie id."""
        for name in await self._votes():
            node = await find_node(self._store, self._path(name))
            if node and node.stat.ephemeral_owner == self._store.session_id and node.data == self._payload:
                self._vote, self._is_vote_in_doubt = name, False
                return True
        self._is_vote_in_doubt = False
        return False

    async def _take_office(self, vote: str) -> bool:
        """Become the auditor, unless the first vote turns out to belong to another process."""
        stat = await self._store.exists(self._path(vote))
        if stat is None or stat.ephemeral_owner != self._store.session_id:
            self._vote = None
            return False
        # Java's winner writes its name there, for information only.
        with contextlib.suppress(NoNodeError):
            await self._store.set(self._directory, self._payload, ANY_VERSION)
        if self._vote != vote:
            return False  # the session ended meanwhile
        self._is_elected = True
        self._own_vote_watch = self._store.watch_node(self._path(vote), self._look_at_own_vote)
        return True

    def _look_at_own_vote(self, node: Node | None) -> None:
        if node is None or node.stat.ephemeral_owner != self._store.session_id:
            self._step_down("another process deleted its vote, so the next candidate takes over")

    def _note_session_lost(self) -> None:
        self._is_vote_in_doubt = False
        self._step_down("its ZooKeeper session expired, which removed its vote")

    def _step_down(self, reason: str) -> None:
        self._vote = None
        if self._leave_office():
            logger.warning("this auditor steps down: %s", reason)
            self._on_stepped_down(reason)

    def _leave_office(self) -> bool:
        was_elected, self._is_elected = self._is_elected, False
        if self._own_vote_watch is not None:
            self._own_vote_watch.cancel()
            self._own_vote_watch = None
        return was_elected

    async def _votes(self) -> list[str]:
        """Names of the votes, the winner first."""
        return votes_among(await self._names(None), self._directory, self._foreign)

    async def _names(self, on_change: Callable[[], None] | None) -> list[str]:
        try:
            return await self._store.children(self._directory, on_change)
        except NoNodeError:
            if on_change is not None:
                on_change()
            return []

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def votes_among(names: Sequence[str], directory: str, foreign: ForeignNames) -> list[str]:
    """Names of votes, ordered by number; skips others, any of which would end every Java elector."""
    numbers = foreign.parsed(directory, names, parse_vote_name, "a vote")
    return sorted(numbers, key=lambda name: (numbers[name], name))


async def list_candidates(store: MetadataStore, root: str, foreign: ForeignNames) -> list[Candidate]:
    """Votes, the auditor's first; none when there never was an election. One operation each and one for all.

    Creates nothing. Ignores the name in the directory's own node, which outlives its auditor.
    """
    directory = Paths(root).auditor_election
    names = await children_of(store, directory)
    found = (await _read_candidate(store, directory, name) for name in votes_among(names, directory, foreign))
    return [candidate async for candidate in found if candidate is not None]


async def read_auditor(store: MetadataStore, root: str, foreign: ForeignNames) -> Candidate | None:
    """The auditor: the first vote, else Pulsar's auditor; None when there is neither. Two operations."""
    directory = Paths(root).auditor_election
    for _ in range(_ATTEMPTS_MAX):
        votes = votes_among(await children_of(store, directory), directory, foreign)
        if not votes:
            return await read_pulsar_auditor(store, root)
        if candidate := await _read_candidate(store, directory, votes[0]):
            return candidate
    raise ConflictError(f"{directory}: the elected auditor keeps changing")


async def read_pulsar_auditor(store: MetadataStore, root: str) -> Candidate | None:
    """The auditor elected by Pulsar's metadata driver; there may be a voted one as well. One operation."""
    return await _read_candidate(store, Paths(root).under_replication, PULSAR_AUDITOR, decode_pulsar_auditor)


async def _read_candidate(
    store: MetadataStore, directory: str, vote: str, decode: Callable[[bytes], str] = decode_vote
) -> Candidate | None:
    found = await read_or_problem(store, f"{directory}/{vote}", decode)
    if found is None:
        return None
    stat, bookie_id, problem = found
    return Candidate(vote, bookie_id, stat.ephemeral_owner, stat.ctime_ms, problem)

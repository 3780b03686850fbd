"""What must hold at every moment of an exploration, checked from outside on the nodes and the disks."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Collection

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.replication.judge.fragments import stored_count
from bkctl.storage.json_text import decode_json
from tests.sim.watched_cluster import PATHS, WatchedCluster, metadata_summary

MARK_GRACE_S = 20.0
"""How long after it has cleared a mark a worker may take to look again, and to set it again."""

LOOK_S_MAX = 25.0
"""Longest time from a look at registrations to the write that relies on it, with slow requests and reconnections."""

SCAN_S_MAX = 10.0
"""Longest time from the beginning of the last scan of a command to its report."""

ACCEPTING = "accept-loss"
"""How the processes are named that accept losses."""

RETURN_S_MAX = 10.0
"""Longest time from the return of a bookie until a process that accepts its loss notices it."""

_GIVEN_UP = RecoveryNotes(None, PATHS.root).given_up  # type: ignore[arg-type]
_LEDGER = re.compile(re.escape(PATHS.root) + r"/(\d\d)/(\d{4})/L(\d{4})")


class Oracle:
    """Follows every change; ``violated`` is set at the first violation."""

    def __init__(self) -> None:
        self.cluster: WatchedCluster
        self.acknowledged: dict[int, set[int]] = {}
        self.accepted: dict[int, set[int]] = {}
        """Acknowledged entries that an operator gave up, and that no bookie of their write sets has since."""
        self.ledgers: dict[int, LedgerMetadata] = {}
        self.decommissioned: set[str] = set()
        """Bookies whose decommission reported success: their data is gone."""
        self.gone_since_s: dict[str, float] = {}
        """Bookies that are not registered, and since when."""
        self.trace: list[str] = []
        self.violation: str | None = None
        self.violated = asyncio.Event()
        self.checks = 0
        self._looks_s: dict[str, float] = {}
        self._named: dict[tuple[int, str], tuple[str, float]] = {}
        """Who made the metadata of a ledger name a bookie, and when."""
        self._registered_s: dict[str, float] = {}
        self._cookie_gone_s: dict[str, float] = {}
        self._marked: set[int] = set()
        self._clears: list[tuple[int, str, float, float]] = []
        self.unreliable_s: dict[str, float] = {}
        """When a process was last killed, or lost its session or an answer."""

    def note(self, actor: str, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.now_s():9.3f}  {actor:<12} {text}")

    def now_s(self) -> float:
        """Virtual time."""
        return asyncio.get_running_loop().time()

    def violate(self, text: str) -> None:
        """Keep the first violation."""
        self.note("VIOLATION", text)
        if self.violation is None:
            self.violation = text
            self.violated.set()

    # -- changes ------------------------------------------------------------------------------------------------------

    def on_look(self, actor: str) -> None:
        self._looks_s[actor] = self.now_s()

    def on_node(self, actor: str, path: str, data: bytes | None) -> None:
        if (found := _LEDGER.fullmatch(path)) is not None:
            self._on_ledger(actor, int("".join(found.groups())), data)
        elif path.startswith((PATHS.available + "/", PATHS.cookies + "/")):
            self._on_bookie(actor, path, data)
        elif path.startswith(PATHS.under_replicated_ledgers + "/") and "/urL" in path:
            self._on_mark(actor, int(path.rpartition("/urL")[2]), data)
        elif path.startswith(_GIVEN_UP.path + "/"):
            self.note(actor, f"note {path.rpartition('/')[2]}: {data!r}")
            self._check_note(int(path.rpartition("/")[2]))

    def _on_ledger(self, actor: str, ledger_id: int, data: bytes | None) -> None:
        if data is None:
            self.note(actor, f"deletes ledger {ledger_id}")
            self.ledgers.pop(ledger_id, None)
            return
        before, metadata = self.ledgers.get(ledger_id), decode_ledger_metadata(data)
        self.ledgers[ledger_id] = metadata
        self.note(actor, f"writes ledger {ledger_id}: {metadata_summary(metadata)}")
        if actor.startswith(ACCEPTING) and metadata.is_closed:
            self._accept(actor, ledger_id)
        self.check_ledger(ledger_id)
        self._check_note(ledger_id)
        if any(len(set(segment.ensemble)) < len(segment.ensemble) for segment in metadata.segments):
            self.violate(f"ledger {ledger_id} names a bookie twice in an ensemble")
        new = metadata.bookies() - (frozenset() if before is None else before.bookies())
        if before is not None and before.is_closed and (given_up := sorted(new & self._given_up(ledger_id))):
            self.violate(f"ledger {ledger_id} now names {given_up[0]}, whose loss is still accepted")
        for bookie_id in new:
            self._named[ledger_id, bookie_id] = actor, self.now_s()
        named = sorted(self.decommissioned.intersection(new))
        if named and not actor.startswith("writer"):
            self.violate(f"ledger {ledger_id} now names {named[0]}, whose decommission had reported success")
        for bookie_id in sorted(new) if before is not None and not actor.startswith("writer") else ():
            gone_s = self.now_s() - self.gone_since_s.get(bookie_id, self.now_s())
            if gone_s > LOOK_S_MAX:
                self.violate(f"ledger {ledger_id} now names {bookie_id}, which has been gone for {gone_s:.3f} s")

    def _on_bookie(self, actor: str, path: str, data: bytes | None) -> None:
        directory, _, bookie_id = path.rpartition("/")
        verb = "is gone" if data is None else "is there"
        self.note(actor or bookie_id, f"{directory.removeprefix(PATHS.root + '/')}/{bookie_id} {verb}")
        if directory == PATHS.cookies:
            if data is not None and bookie_id in self.decommissioned:
                self.decommissioned.discard(bookie_id)
            if data is None:
                self._cookie_gone_s[bookie_id] = self.now_s()
            return
        nodes = self.cluster.server.nodes
        if f"{PATHS.available}/{bookie_id}" in nodes or f"{PATHS.read_only}/{bookie_id}" in nodes:
            if self.gone_since_s.pop(bookie_id, None) is not None:
                self._registered_s[bookie_id] = self.now_s()
        else:
            self.gone_since_s.setdefault(bookie_id, self.now_s())

    def _on_mark(self, actor: str, ledger_id: int, data: bytes | None) -> None:
        if data is not None:
            self._marked.add(ledger_id)
            self.note(actor, f"marks ledger {ledger_id}: {b' '.join(data.split()).decode()[:100]}")
            return
        self._marked.discard(ledger_id)
        self.note(actor, f"clears the mark of ledger {ledger_id}")
        self._clears.append((ledger_id, actor, self._looks_s.get(actor, 0.0), self.now_s()))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check_ledger(self, ledger_id: int) -> None:
        """Each acknowledged entry has a copy among the bookies that the metadata names for it."""
        self.checks += 1
        metadata = self.ledgers.get(ledger_id)
        if metadata is None:
            return
        accepted = self.accepted.setdefault(ledger_id, set())
        accepted -= {each for each in accepted if self._holders(ledger_id, each)}
        for entry_id in sorted(self.acknowledged.get(ledger_id, set()) - accepted):
            if metadata.is_closed and entry_id > metadata.last_entry_id:
                self.violate(f"ledger {ledger_id}: it ends before the acknowledged entry {entry_id}")
                return
            if not self._holders(ledger_id, entry_id):
                members = _write_set(metadata, entry_id)
                self.violate(f"ledger {ledger_id}: no copy of the acknowledged entry {entry_id} on {members}")
                return

    def _holders(self, ledger_id: int, entry_id: int) -> list[str]:
        """The bookies of its write set that have an entry, which is not after the end."""
        metadata = self.ledgers[ledger_id]
        if metadata.is_closed and entry_id > metadata.last_entry_id:
            return []
        return self.cluster.holders(ledger_id, entry_id, _write_set(metadata, entry_id))

    def _accept(self, actor: str, ledger_id: int) -> None:
        """The loss of what the write sets do not have is accepted, if no other bookie that serves has it."""
        for entry_id in self.acknowledged.get(ledger_id, set()) - self.accepted.setdefault(ledger_id, set()):
            if self._holders(ledger_id, entry_id):
                continue
            self.accepted[ledger_id].add(entry_id)
            long_ago_s = self.now_s() - RETURN_S_MAX
            serving = [
                each
                for each, bookie in self.cluster.bookies.items()
                if bookie.is_up and each not in self.gone_since_s and self._registered_s.get(each, 0.0) < long_ago_s
            ]
            if holders := self.cluster.holders(ledger_id, entry_id, serving):
                self.violate(f"{actor} accepts the loss of ledger {ledger_id}, entry {entry_id}, which {holders} have")

    def _check_note(self, ledger_id: int) -> None:
        """No bookie of its write set has an entry that the note of an accepted loss excuses."""
        node, metadata = self.cluster.server.nodes.get(_GIVEN_UP.path_of(str(ledger_id))), self.ledgers.get(ledger_id)
        if node is None or metadata is None:
            return
        note = decode_json(node.data, GivenUpNote)
        for entry_id in itertools.chain.from_iterable(range(first, last + 1) for first, last in note.lost):
            if not set(note.closed_without).isdisjoint(metadata.last_segment.ensemble):
                continue
            if holders := self._holders(ledger_id, entry_id):
                self.violate(f"ledger {ledger_id}: the loss of entry {entry_id} is accepted, which {holders} have")

    def _given_up(self, ledger_id: int) -> set[str]:
        """The bookies that were given up with what they have of a ledger. If one is back, that ends with its own note,
        or with the copies that it gets."""
        node = self.cluster.server.nodes.get(_GIVEN_UP.path_of(str(ledger_id)))
        if node is None:
            return set()
        note, bookies = decode_json(node.data, GivenUpNote), self.cluster.bookies
        return {each for each in note.member_since if bookies[each].noted_ms <= note.written_ms}

    def check_readable(self, ledger_id: int, live: Collection[str]) -> None:
        """A bookie that is live has each acknowledged entry, as a check says, but for accepted losses."""
        self.checks += 1
        for entry_id in self.acknowledged.get(ledger_id, set()) - self.accepted.get(ledger_id, set()):
            holders = self._holders(ledger_id, entry_id)
            if set(live).isdisjoint(holders) and not self._given_up(ledger_id).issuperset(holders):
                self.violate(f"ledger {ledger_id} is called whole without entry {entry_id}")

    def acknowledge(self, ledger_id: int, entry_id: int) -> None:
        """A writer was told that the entry is stored, perhaps after its only bookie was given up."""
        self.acknowledged.setdefault(ledger_id, set()).add(entry_id)
        if self._given_up(ledger_id) and self.ledgers[ledger_id].is_closed:
            self._accept("writer", ledger_id)
        self.check_ledger(ledger_id)

    def named_by(self, bookie_id: str, among: Collection[int] | None = None) -> list[int]:
        """Ledgers whose metadata names the bookie now."""
        return sorted(
            ledger_id
            for ledger_id, metadata in self.ledgers.items()
            if bookie_id in metadata.bookies() and (among is None or ledger_id in among)
        )

    def check_promise(self, actor: str, bookie_ids: Collection[str], among: Collection[int] | None = None) -> None:
        """No ledger names the bookies, but for those that a writer with an old list of bookies created just now."""
        for bookie_id in bookie_ids:
            since_s = self._cookie_gone_s.get(bookie_id, self.now_s() - SCAN_S_MAX)
            named = [
                each for each in self.named_by(bookie_id, among) if not self._is_by_writer(each, bookie_id, since_s)
            ]
            if named:
                self.violate(f"{actor} reports success, but ledger {named[0]} names {bookie_id}")

    def _is_by_writer(self, ledger_id: int, bookie_id: str, since_s: float) -> bool:
        actor, named_s = self._named.get((ledger_id, bookie_id), ("", 0.0))
        return actor == "writer" and named_s >= since_s

    def retire(self, actor: str, bookie_ids: Collection[str]) -> None:
        """A decommission has reported success: the data of the bookies is deleted."""
        self.check_promise(actor, bookie_ids)
        for bookie_id in bookie_ids:
            if f"{PATHS.cookies}/{bookie_id}" in self.cluster.server.nodes:
                self.violate(f"{actor} reports success, but {bookie_id} has a cookie")
            # One that registers after its cookie is gone looks for it once more, and withdraws.
            cookie_gone_s = self._cookie_gone_s.get(bookie_id, 0.0)
            is_registered = bookie_id not in self.gone_since_s
            if is_registered and self._registered_s.get(bookie_id, 0.0) <= cookie_gone_s:
                self.violate(f"{actor} reports success, but {bookie_id} is registered")
            self.decommissioned.add(bookie_id)
            self.cluster.bookies[bookie_id].retire()
        for ledger_id in self.ledgers:
            self.check_ledger(ledger_id)

    def check_marks(self) -> None:
        """Marks that were cleared some time ago were not needed, or are there again."""
        due = [each for each in self._clears if each[3] + MARK_GRACE_S <= self.now_s()]
        self._clears = [each for each in self._clears if each not in due]
        for ledger_id, actor, _, cleared_s in due:
            if ledger_id in self._marked or self.unreliable_s.get(actor, -1.0) >= cleared_s:
                continue
            metadata = self.ledgers.get(ledger_id)
            if metadata is None:
                continue
            for bookie_id in sorted(_needed(metadata) - self._given_up(ledger_id)):
                if self.gone_since_s.get(bookie_id, cleared_s) < cleared_s:
                    self.violate(
                        f"{actor} cleared the mark of ledger {ledger_id} at {cleared_s:.3f}, which names {bookie_id}, "
                        f"gone since {self.gone_since_s[bookie_id]:.3f}"
                    )


def _write_set(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    ensemble = metadata.segment_of(entry_id).ensemble
    return [ensemble[index] for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]


def _needed(metadata: LedgerMetadata) -> set[str]:
    """Members that should have entries of complete segments."""
    return {bookie_id for bookie_id in metadata.bookies() if stored_count(metadata, bookie_id)}

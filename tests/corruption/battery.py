"""Every byte of a data directory flipped, zeroed, and cut off with all behind it, one at a time; what a bookie then
says.

Allowed is: all that was acknowledged is there; or the boot, or the read of an entry, is refused with an error that
names the file. Not allowed is a denied entry, a lost fence, an entry that nobody wrote, or an exception of any other
kind. A damaged payload may be served: the digest in it is the client's to check, and only the ids belong to the bookie.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import StorageError
from tests.corruption.data_directory import LEDGER_IDS, Acknowledged, State, boot, make

_NOT_DATA = frozenset({"LOCK", "LOG", "LOG.old", "bkctl.lock"})
"""Claims on directories, and LevelDB's talk: no byte of them is ever read back."""


_IDS_BYTES = 16


class Damage(NamedTuple):
    """One byte of one file."""

    path: str
    """Below the root."""
    kind: str
    """flip, zero or cut."""
    offset: int

    def __str__(self) -> str:
        return f"{self.kind} {self.path} at {self.offset}"

    def applied_to(self, data: bytes) -> bytes:
        """The file's contents after the damage."""
        if self.kind == "cut":
            return data[: self.offset]
        # The bit is drawn at random, and is the same in every run.
        bit = 1 << random.Random(str(self)).randrange(8)
        byte = data[self.offset] ^ bit if self.kind == "flip" else 0
        return data[: self.offset] + bytes([byte]) + data[self.offset + 1 :]


class Damaged:
    """A data directory, to be copied and damaged.

    A copy has hard links to the files that no bookie changes in place, because there are thousands of copies.
    """

    def __init__(self, state: State) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=_fast_directory())
        self._original = os.path.join(self._directory.name, "original")
        self._copy = os.path.join(self._directory.name, "copy")
        self._acknowledged = make(self._original, state)
        self._directories, self._files = _read_tree(self._original)

    def close(self) -> None:
        """Delete the directory; AssertionError if a bookie changed a linked file in place."""
        _, files = _read_tree(self._original)
        self._directory.cleanup()
        assert files == self._files

    def damages(self) -> Iterator[Damage]:
        """Every damage there is, file by file."""
        for path, data in self._files.items():
            if os.path.basename(path) in _NOT_DATA:
                continue
            for offset, byte in enumerate(data):
                yield Damage(path, "flip", offset)
                yield Damage(path, "cut", offset)
                if byte:
                    yield Damage(path, "zero", offset)

    def wrongs(self, damage: Damage) -> list[str]:
        """What is not allowed, after a damage."""
        shutil.rmtree(self._copy, ignore_errors=True)
        for directory in self._directories:
            os.mkdir(os.path.join(self._copy, directory))
        for path, data in self._files.items():
            copy = os.path.join(self._copy, path)
            if path == damage.path:
                _write(copy, damage.applied_to(data))
            elif path.endswith(".txn") or os.path.basename(path) in _NOT_DATA:
                _write(copy, data)  # these may be changed in place
            else:
                os.link(os.path.join(self._original, path), copy)
        try:
            storage = boot(self._copy)
        except (StorageError, OSError) as error:
            return [] if self._copy in str(error) else [f"{damage}: refused without a path: {error}"]
        except Exception as error:
            return [f"{damage}: boot ended with {type(error).__name__}: {error}"]
        try:
            return [f"{damage}: {wrong}" for wrong in _wrongs(storage, self._acknowledged)]
        finally:
            storage.close()


def find_wrongs(state: State, is_chosen: Callable[[int], bool]) -> tuple[int, list[str]]:
    """Number of damages tried, and all that was not allowed after them; damages are chosen by their number."""
    damaged = Damaged(state)
    try:
        results = [damaged.wrongs(damage) for number, damage in enumerate(damaged.damages()) if is_chosen(number)]
    finally:
        damaged.close()
    return len(results), list(itertools.chain.from_iterable(results))


def _wrongs(storage: LedgerStorage, acknowledged: Acknowledged) -> Iterator[str]:
    for ledger_id in acknowledged.fenced:
        row = storage.engine_of(ledger_id).rows.find(ledger_id)
        if row is None or not row.is_fenced:
            yield f"the fence of ledger {ledger_id} is lost"
    for ledger_id, lac in acknowledged.explicit_lacs.items():
        row = storage.engine_of(ledger_id).rows.find(ledger_id)
        if row is None or row.explicit_lac != lac:
            yield f"the explicit LAC of ledger {ledger_id} is {row and row.explicit_lac!r}"
    for key, body in acknowledged.entries.items():
        yield from _wrongs_of_entry(storage, key, body)
    for engine in storage.engines:
        for ledger_id in engine.ledger_ids():
            yield from _strangers(engine, ledger_id, acknowledged)


def _wrongs_of_entry(storage: LedgerStorage, key: tuple[int, int], body: bytes) -> Iterator[str]:
    ledger_id, entry_id = key
    engine = storage.engine_of(ledger_id)
    try:
        found = engine.find_cached(ledger_id, entry_id) or engine.stored.read(ledger_id, entry_id)
    except (StorageError, OSError):
        return
    except Exception as error:
        yield f"the read of {ledger_id}:{entry_id} ended with {type(error).__name__}: {error}"
        return
    if found is None:
        yield f"entry {ledger_id}:{entry_id} is denied"
    elif found[:_IDS_BYTES] != body[:_IDS_BYTES]:
        yield f"entry {ledger_id}:{entry_id} is that of another: {found[:_IDS_BYTES].hex()}"


def _strangers(engine: LedgerDirectoryEngine, ledger_id: int, acknowledged: Acknowledged) -> Iterator[str]:
    try:
        present = {*engine.stored.list_entries(ledger_id), *engine.list_cached_entries(ledger_id)}
    except (StorageError, OSError):
        return
    strangers = {(ledger_id, entry_id) for entry_id in present} - set(acknowledged.entries)
    if strangers or ledger_id not in LEDGER_IDS:
        yield f"ledger {ledger_id} with entries {sorted(strangers)} was never written"


def _read_tree(root: str) -> tuple[list[str], dict[str, bytes]]:
    """Directories below ``root``, itself first, and the contents of each file, both by their path below it."""
    directories, contents = [], {}
    for directory, subdirectories, names in os.walk(root):
        subdirectories.sort()
        below = os.path.relpath(directory, root)
        directories.append("" if below == "." else below)
        for name in sorted(names):
            with open(os.path.join(directory, name), "rb") as file:
                contents[os.path.join(directories[-1], name)] = file.read()
    return directories, contents


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _fast_directory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

"""The kinds of fault: what is done to a bookie under load."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.runtime.bookie.bookie_process import open_files
from tests.soak.faulty import Faulty

KIBIBYTE = 1024
STORAGE_FAILED = 5
"""Exit code."""
_WRITES = "pwrite64,pwritev,pwritev2,write"
_SYNCS = "fdatasync,fsync"
_OPENS = "openat"
_RENAMES = "rename,renameat,renameat2"
_CHANGES = f"pwrite64,pwritev,pwritev2,ftruncate,fallocate,unlink,mkdir,{_SYNCS},{_RENAMES}"
"""All that a disk refuses which the kernel has made read-only."""


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    strike: Sequence[Callable[[Faulty], object]]
    """Done one after the other, with time between them."""
    prefix: Callable[[Faulty], Sequence[str]] = lambda _: ()
    is_prefix_of_all: bool = False
    """Of all bookies, not of the victim alone."""
    settings: Sequence[str] = ()
    """Of all bookies, instead of the usual ones."""
    disks: Sequence[str] = ()
    needs_ensemble: bool = False
    has_happened: Callable[[Faulty], bool] = lambda _: True
    """Whether it did what it should; asked before the bookie is restarted."""


def _calls(name: str, calls: str, what: str, files: str) -> Kind:
    """System calls that fail; ``what`` is strace's ``inject``: which error, and from which call on."""
    return Kind(
        name, [lambda faulty: faulty.inject(calls, what, files)], has_happened=lambda faulty: bool(faulty.injected)
    )


def _disk(name: str, disk: str, act: Callable[[Faulty, str], object]) -> Kind:
    return Kind(name, [lambda faulty: act(faulty, disk)], disks=("journal", "ledgers"))


def _broken(name: str, part: str) -> Kind:
    """An ext4 file system with an error: the kernel makes it read-only under the bookie."""
    return Kind(
        name,
        [Faulty.fail_disk],
        prefix=lambda faulty: faulty.own_disk(part),
        has_happened=lambda faulty: faulty.exit_code == STORAGE_FAILED and "Read-only file system" in faulty.said,
    )


_JUMPS = (
    lambda faulty: faulty.set_clock(86_400),
    lambda faulty: faulty.set_clock(-86_400),
    lambda faulty: faulty.set_clock(3652 * 86_400),
    lambda faulty: faulty.set_clock(0),
)

KINDS = (
    _calls("journal: write EIO", _WRITES, "error=EIO:when=20+", "journals"),
    _calls("journal: one write EIO", _WRITES, "error=EIO:when=20", "journals"),
    _calls("journal: write ENOSPC", _WRITES, "error=ENOSPC:when=20+", "journals"),
    _calls("journal: write EDQUOT", _WRITES, "error=EDQUOT:when=20+", "journals"),
    _calls("journal: write EROFS", _WRITES, "error=EROFS:when=20+", "journals"),
    _calls("journal: write ENOMEM", _WRITES, "error=ENOMEM:when=20+", "journals"),
    _calls("journal: sync EIO", _SYNCS, "error=EIO:when=10+", "journals"),
    _calls("journal: one sync EIO", _SYNCS, "error=EIO:when=10", "journals"),
    _calls("journal: sync ENOSPC", _SYNCS, "error=ENOSPC:when=10+", "journals"),
    _calls("journal: syncs take 300 ms", _SYNCS, "delay_enter=300ms", "journals"),
    _calls("journal: open EMFILE", _OPENS, "error=EMFILE", "journals"),
    _calls("journal: open EACCES", _OPENS, "error=EACCES", "journals"),
    _calls("journal: open ENOSPC", _OPENS, "error=ENOSPC", "journals"),
    _calls("journal: remove EROFS", "unlink,unlinkat", "error=EROFS", "journals"),
    _calls("entry log: write EIO", _WRITES, "error=EIO:when=3+", "logs"),
    _calls("entry log: write ENOSPC", _WRITES, "error=ENOSPC:when=3+", "logs"),
    _calls("entry log: one write ENOSPC", _WRITES, "error=ENOSPC:when=3", "logs"),
    _calls("entry log: sync EIO", _SYNCS, "error=EIO", "logs"),
    _calls("entry log: one sync EIO", _SYNCS, "error=EIO:when=2", "logs"),
    _calls("entry log: open EMFILE", _OPENS, "error=EMFILE", "logs"),
    _calls("entry log: read EIO", "pread64", "error=EIO:when=2+", "logs"),
    _calls("index: write EIO", _WRITES, "error=EIO:when=3+", "index"),
    _calls("index: write ENOSPC", _WRITES, "error=ENOSPC:when=3+", "index"),
    _calls("index: sync EIO", _SYNCS, "error=EIO:when=2+", "index"),
    _calls("index: one write EIO", _WRITES, "error=EIO:when=3", "index"),
    _calls("marks: write EIO", _WRITES, "error=EIO", "marks"),
    _calls("marks: sync EIO", _SYNCS, "error=EIO", "marks"),
    _calls("marks: rename EIO", _RENAMES, "error=EIO", "marks"),
    _calls("directories: sync EIO", _SYNCS, "error=EIO", "directories"),
    _calls("every sync EIO", _SYNCS, "error=EIO:when=30+", ""),
    _calls("every open ENFILE", _OPENS, "error=ENFILE", ""),
    _calls("every statfs EIO", "statfs,fstatfs", "error=EIO", ""),
    _calls("every rename ENOSPC", _RENAMES, "error=ENOSPC", ""),
    _calls("every change EROFS", _CHANGES, "error=EROFS", ""),
    _disk("full journal disk", "journal", Faulty.fill),
    _disk("full ledger disk", "ledgers", Faulty.fill),
    _disk("journal disk unmounted", "journal", Faulty.detach),
    _disk("ledger disk unmounted", "ledgers", Faulty.detach),
    _broken("journal disk becomes read-only", "journal"),
    _broken("ledger disk becomes read-only", "ledgers"),
    _broken("the only disk becomes read-only", ""),
    Kind("files may have 300 KiB (ulimit -f)", [lambda faulty: faulty.limit(resource.RLIMIT_FSIZE, 300 * KIBIBYTE)]),
    Kind("no more open files (prlimit -n 20)", [lambda faulty: faulty.limit(resource.RLIMIT_NOFILE, 20)]),
    Kind("no more memory (prlimit -v)", [lambda faulty: faulty.limit(resource.RLIMIT_AS, 64 * 1024 * KIBIBYTE)]),
    Kind(
        "ulimit -n 64 at a start",
        [lambda faulty: faulty.start_again(open_files(64, 64))],
        has_happened=lambda faulty: "may have only 64 files open, and this bookie needs" in faulty.said,
    ),
    Kind(
        "ulimit -n 230, 300 connections",
        [lambda faulty: faulty.connect(300)],
        prefix=lambda _: open_files(230, 230),
        has_happened=lambda faulty: "may have only 230 files open" in faulty.said,
    ),
    Kind("halted for 5 s", [lambda faulty: faulty.halt(5.0)]),
    Kind("clock jumps: a day on, two back, ten years on, back", _JUMPS, prefix=Faulty.own_clock),
    Kind("the same jumps of all bookies and clients", _JUMPS, prefix=Faulty.common_clock, is_prefix_of_all=True),
    Kind("the leader of three ZooKeepers killed, twice", [Faulty.kill_leader, Faulty.kill_leader], needs_ensemble=True),
)

from __future__ import annotations

import random

from tests.crash.model_disk import Mode, ModelDisk
from tests.crash.trace import (
    Change,
    Create,
    Link,
    MakeDirectory,
    Remove,
    Rename,
    SyncDirectory,
    SyncFile,
    Truncate,
    Write,
)

Tree = dict[str, bytes | None]


def outcomes(mode: Mode, *changes: Change) -> list[Tree]:
    disk = ModelDisk(mode)
    for number, change in enumerate(changes):
        disk.apply(number, change)
    drawn = [disk.survivors(random.Random(seed)) for seed in range(300)]
    return [tree for index, tree in enumerate(drawn) if tree not in drawn[:index]]


def contents(mode: Mode, *changes: Change) -> set[bytes | None]:
    return {tree["f"] for tree in outcomes(mode, Create("f", 0), SyncDirectory("", 1), *changes)}


def test_what_was_not_synced_is_lost_or_there_or_torn() -> None:
    found = contents(Mode.STRICT, Write(0, 0, b"a" * 512 + b"b" * 512))
    assert found == {
        b"",
        b"a" * 512,
        b"a" * 512 + b"b" * 512,
        bytes(512) + b"b" * 512,
        b"a" * 512 + bytes(512),
        bytes(1024),
    }


def test_what_was_synced_is_there() -> None:
    for mode in Mode:
        assert contents(mode, Write(0, 0, b"old"), SyncFile(0, 3), Write(0, 0, b"new")) == {b"old", b"new"}
        assert contents(mode, Write(0, 0, b"old"), SyncFile(0, 3)) == {b"old"}


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    assert contents(Mode.ORDERED, Write(0, 0, b"late"), SyncFile(0, 2)) == {b"", b"late", bytes(4)}


def test_a_length_that_was_set_may_be_lost() -> None:
    assert contents(Mode.STRICT, Write(0, 0, b"abc"), SyncFile(0, 3), Truncate(0, 1)) == {b"abc", b"a"}


def test_ordered_names_survive_in_their_order() -> None:
    found = outcomes(Mode.ORDERED, Create("a", 0), Create("b", 1), Rename("b", "c"))
    assert {frozenset(tree) for tree in found} == {frozenset(names) for names in ((), "a", "ab", "ac")}


def test_ordered_names_are_committed_with_a_later_file() -> None:
    found = outcomes(Mode.ORDERED, Create("a", 0), Create("b", 1), Write(1, 0, b"x"), SyncFile(1, 3))
    assert {frozenset(tree) for tree in found} == {frozenset({"a", "b"})}


def test_strict_names_survive_each_on_its_own() -> None:
    found = outcomes(Mode.STRICT, Create("a", 0), Create("b", 1), Write(1, 0, b"x"), SyncFile(1, 3))
    assert {frozenset(tree) for tree in found} == {frozenset(names) for names in ((), "a", "b", "ab")}


def test_a_rename_survives_as_a_whole() -> None:
    for mode in Mode:
        found = outcomes(mode, Create("a", 0), SyncDirectory("", 1), Rename("a", "b"))
        assert {frozenset(tree) for tree in found} == {frozenset("a"), frozenset("b")}


def test_a_renamed_directory_takes_its_files_along() -> None:
    changes = (
        MakeDirectory("d"),
        SyncDirectory("", 1),
        Create("d/a", 0),
        SyncDirectory("d", 3),
        Rename("d", "e"),
        SyncDirectory("", 5),
    )
    for mode in Mode:
        assert outcomes(mode, *changes) == [{"e": None, "e/a": b""}]


def test_a_file_with_two_names_is_one_file() -> None:
    changes = (Create("a", 0), Link("a", "b"), Remove("a"), Write(0, 0, b"x"), SyncFile(0, 4), SyncDirectory("", 5))
    for mode in Mode:
        assert outcomes(mode, *changes) == [{"b": b"x"}]


def test_files_in_a_directory_whose_name_was_lost_are_lost() -> None:
    changes = (MakeDirectory("d"), Create("d/a", 0), SyncDirectory("d", 2))
    assert {frozenset(tree) for tree in outcomes(Mode.STRICT, *changes)} == {frozenset(), frozenset({"d", "d/a"})}

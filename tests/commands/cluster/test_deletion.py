"""Which earlier formats and nukes were stopped half way, by the audit trail."""

from __future__ import annotations

from typing import Any

import pytest

from bkctl.commands.cluster.deletion import stopped_deletions

ROOT, URI = "/ledgers", "zk://z1/ledgers"


def begun(operation_id: str, command: str = "cluster nuke", **more: Any) -> dict[str, Any]:
    fields = {"event": "begin", "operation_id": operation_id, "command": command, "root": ROOT, "metadata_uri": URI}
    return {**fields, "time": f"t{operation_id}", **more}


def ended(operation_id: str, result: str, command: str = "cluster nuke") -> dict[str, Any]:
    return {**begun(operation_id, command), "event": "end", "result": result, "details": {"backup": f"b{operation_id}"}}


NOTHING = "failed: nothing was changed: the metadata has changed"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], []),
        ([begun("1")], [("t1", None)]),
        ([begun("1"), ended("1", "interrupted")], [("t1", "b1")]),
        ([begun("1"), begun("2"), ended("2", "failed: session expired")], [("t1", None), ("t2", "b2")]),
        ([begun("1"), begun("2"), ended("2", NOTHING)], [("t1", None)]),
        ([begun("1"), begun("2", "cluster format"), ended("2", "done", "cluster format")], []),
        ([begun("1"), ended("2", "done", "cluster restore"), begun("3")], [("t3", None)]),
        ([begun("1", root="/other"), begun("2", metadata_uri="zk://z2/ledgers")], []),
        ([begun("1", "ledger delete")], []),
        ([begun("own")], []),
    ],
)
def test_stopped_deletions(lines: list[dict[str, Any]], found: list[tuple[str, str | None]]) -> None:
    assert [(each.time, each.backup) for each in stopped_deletions(lines, ROOT, URI, "own")] == found

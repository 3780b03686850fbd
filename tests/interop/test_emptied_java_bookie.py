"""A Java bookie that was formatted and came back under its ID denies at once what it had: bk#2612."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.interop.java import JavaClient, run_shell
from tests.interop.java_cluster import JavaCluster

LEDGER_COUNT = 10
ENTRY_COUNT = 100


async def test_entries_of_the_other_member_are_not_cut_off(new_metadata_uri: Callable[[], str], tmp_path: Path) -> None:
    with JavaCluster(str(tmp_path / "bookies"), new_metadata_uri()) as cluster:
        emptied, _ = cluster.start_bookies(2)
        java = JavaClient(cluster.metadata_uri, str(tmp_path / "client.log"))
        try:
            ledger_ids = [await java.create(ensemble=(2, 2, 2)) for _ in range(LEDGER_COUNT)]
            for each in ledger_ids:
                await java.append(each, [b"acknowledged"] * ENTRY_COUNT)
        finally:
            java.stop()
        cluster.stop(emptied)
        conf_path = f"{cluster.directory_of(emptied)}.conf"
        words = ("bookieformat", "-nonInteractive", "-force", "-deleteCookie")
        formatted = await asyncio.to_thread(run_shell, conf_path, *words)
        assert formatted.returncode == 0, formatted.stderr
        cluster.restart(emptied)
        closed = cluster.run("ledger", "close", *map(str, ledger_ids), "--grace", "0s", "--yes")
        assert closed.exit_code == 0, closed.stderr
        shown = [cluster.run("ledger", "show", str(each), "-o", "json").json() for each in ledger_ids]
        assert {each["last_entry_id"] for each in shown} == {str(ENTRY_COUNT - 1)}

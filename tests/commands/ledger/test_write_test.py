"""An interrupted ``bkctl ledger write-test`` names the ledger that it leaves."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.processes import Cluster, start_bkctl
from tests.until import wait_until


def test_an_interrupt_names_the_ledger_that_is_left(cluster: Cluster, tmp_path: Path) -> None:
    before = set(cluster.run("ledger", "list", "-o", "name").stdout.split())
    words = ("ledger", "write-test", "--entries", "100000", "--max-per-second", "20", "-u", cluster.metadata_uri)
    log = tmp_path / "said"
    with log.open("wb") as output:
        process = start_bkctl(*words, stderr=output)
    try:
        (left,) = wait_until(lambda: set(cluster.run("ledger", "list", "-o", "name").stdout.split()) - before)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    command = re.search(r"warning: ledger (\d+) is left: (bkctl .*) deletes it", said)
    assert command is not None, said
    assert command[1] == left
    _, *words_to_delete = command[2].split()
    assert cluster.run(*words_to_delete, "--confirm", left).exit_code == 0

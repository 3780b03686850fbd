"""``bkctl log`` on a real cluster."""

from __future__ import annotations

from pathlib import Path

from tests.processes import Cluster


def test_a_log_from_creation_to_deletion(cluster: Cluster, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")

    def run(*arguments: str, exit_code: int = 0) -> str:
        result = cluster.run("log", *arguments)
        assert result.exit_code == exit_code, result
        return result.stdout + result.stderr

    sizes = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    run("create", "a", *sizes)
    assert "exists already" in run("create", "a", exit_code=5)
    assert "is not a name" in run("create", "a/b", exit_code=2)
    assert "there is no log b" in run("append", "b", "--from-file", str(lines), exit_code=4)
    for _ in range(2):
        run("append", "a", "--from-file", str(lines))
    assert run("read", "a", "--format", "raw") == "onetwoonetwo"
    assert "next entry gets position 4" in run("read", "a", "--from", "5", exit_code=4)
    run("trim", "a", "--before", "2", exit_code=3)
    run("trim", "a", "--before", "2", "--confirm", "a")
    assert "was trimmed" in run("read", "a", "--from", "1", exit_code=4)
    run("delete", "a", "--confirm", "a")
    run("show", "a", exit_code=4)

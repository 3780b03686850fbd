"""``bkctl cluster`` on metadata alone: what is refused, what it answers with, what it leaves."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from bkctl.runtime.metadata.cluster.root import RESTORE_MARK
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote, RecoveryNotes
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataStore
from tests.commands.cluster.conftest import Operator
from tests.processes import TerminalSession, bkctl_command, bkctl_environment
from tests.runtime.metadata.trees import java_tree, plant

CONNECTED = ["available/b1:3181", "available/readonly/b1:3181", "underreplication/auditorelection/V_0000000000"]


def started(operator: Operator, ledgers: int = 3) -> str:
    """A cluster with a few ledgers; its instance id."""
    operator.succeed("cluster", "init")
    operator.add_ledgers(ledgers)
    return operator.instance_id()


def test_instance_id_tells_whether_there_is_a_cluster(operator: Operator) -> None:
    absent = operator.run("cluster", "instance-id")
    assert (absent.exit_code, absent.stdout) == (4, "")
    assert "bkctl cluster init" in absent.stderr
    instance_id = started(operator)
    assert operator.succeed("cluster", "instance-id").json()["instance_id"] == instance_id
    operator.on_store(lambda store: store.delete(f"{operator.root}/INSTANCEID"))
    assert operator.succeed("cluster", "instance-id").json()["instance_id"] is None


def test_format_gives_an_empty_cluster_and_a_backup_to_undo_it(operator: Operator) -> None:
    old_id = started(operator)
    before = operator.tree()
    result = operator.succeed("cluster", "format", "--confirm", old_id)
    report = result.json()
    assert (report["old_instance_id"], report["ledgers_deleted"]) == (old_id, 3)
    assert report["instance_id"] == operator.instance_id() != old_id
    [backup] = operator.backups()
    assert report["backup"] == backup
    assert f"saved the metadata in {backup}" in result.stderr
    assert sorted(operator.tree()) == ["", "INSTANCEID", "LAYOUT", "available", "available/readonly"]
    operator.succeed("cluster", "nuke", "--confirm", report["instance_id"])
    assert operator.run("cluster", "instance-id").exit_code == 4
    operator.succeed("cluster", "restore", backup, "--confirm", old_id)
    after = operator.tree()
    assert {path: node.data for path, node in after.items() if not path.startswith("idgen-long")} == {
        path: node.data for path, node in before.items()
    }
    lines = [json.loads(line) for line in (operator.state / "audit.jsonl").read_text().splitlines()]
    assert [(line["command"], line["event"]) for line in lines] == [
        (f"cluster {verb}", event) for verb in ("init", "format", "nuke", "restore") for event in ("begin", "end")
    ]


@pytest.mark.parametrize("verb", ["format", "nuke", "restore"])
@pytest.mark.parametrize("where", CONNECTED)
def test_nobody_may_be_connected(operator: Operator, verb: str, where: str, tmp_path: Path) -> None:
    instance_id = started(operator)
    backup = str(tmp_path / "backup")
    operator.succeed("cluster", "backup", backup)
    file = [backup] if verb == "restore" else []
    client = KazooClient(operator.uri.servers)
    client.start()
    try:
        client.create(f"{operator.root}/{where}", ephemeral=True, makepath=True)
        before = operator.tree()
        result = operator.run("cluster", verb, *file, "--confirm", instance_id)
        assert result.exit_code == 3
        assert "nothing was changed" in result.stderr
        assert operator.tree() == before
    finally:
        client.stop()
        client.close()
    assert operator.backups() == []


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        ((), {}, "stdin is not a terminal: use --confirm"),
        ((), {"BKCTL_YES": "1"}, "--yes is not enough: use --confirm"),
        (("-y",), {}, "--yes is not enough: use --confirm"),
        (("--confirm", "/ledgers"), {}, "the confirmation is '/ledgers'"),
        (("--confirm", "ID"), {"BKCTL_READ_ONLY": "1"}, "read-only mode"),
        (("--confirm", "ID", "--context", "prod"), {}, "is pinned to instance id another"),
        (("--confirm", "ID", "--context", "ro"), {}, "read-only mode"),
    ],
)
@pytest.mark.parametrize("verb", ["format", "nuke"])
def test_no_way_around_the_confirmation(
    operator: Operator, verb: str, arguments: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:
    instance_id = started(operator)
    uri = operator.environment["BKCTL_METADATA_URI"]
    with (operator.directory / "config.toml").open("a") as config:
        config.write(f'[contexts.prod]\nmetadata_uri = "{uri}"\ninstance_id = "another"\n')
        config.write(f'[contexts.ro]\nmetadata_uri = "{uri}"\nread_only = true\n')
    before = operator.tree()
    words = [instance_id if word == "ID" else word for word in arguments]
    result = operator.run("cluster", verb, *words, **variables)
    assert (result.exit_code, result.stdout) == (3, "")
    assert sentence in result.stderr
    assert "nothing was changed" in result.stderr
    assert operator.tree() == before
    assert operator.backups() == []


@pytest.mark.parametrize("verb", ["format", "nuke"])
def test_a_cluster_with_a_ledger_of_a_newer_release_is_kept(operator: Operator, verb: str) -> None:
    instance_id = started(operator)
    client = KazooClient(operator.uri.servers)
    client.start()
    try:
        client.create(f"{operator.root}/00/0000/L0007", b"BookieMetadataFormatVersion\t4\nnew", makepath=True)
    finally:
        client.stop()
        client.close()
    before = operator.tree()
    refused = operator.run("cluster", verb, "--confirm", instance_id)
    assert refused.exit_code == 3
    assert "nothing was changed: a newer release wrote 1 ledger of " in refused.stderr
    assert operator.tree() == before
    assert operator.backups() == []


def test_typing_the_instance_id(operator: Operator) -> None:
    instance_id = started(operator)
    before = operator.tree()
    for keys, code in ((f"{instance_id}x\n", 3), ("y\n", 3), ("\x04", 3), ("\x03", 130)):
        with TerminalSession("cluster", "format", **operator.environment) as session:
            session.wait_for(f"Type {instance_id} to continue:")
            session.type(keys)
            assert session.exit_code() == code, session.screen
        assert operator.tree() == before
    with TerminalSession("cluster", "format", **operator.environment) as session:
        session.wait_for("will delete all metadata at")
        session.wait_for("Type")
        session.type(f"{instance_id}\n")
        assert session.exit_code() == 0, session.screen
    assert operator.instance_id() != instance_id


@pytest.mark.parametrize("verb", ["format", "nuke"])
def test_a_maintenance_that_starts_after_the_plan_is_not_lost(operator: Operator, verb: str) -> None:
    """The backup would not have it, because its first line is read for the plan."""
    instance_id = started(operator)

    async def start(store: MetadataStore) -> None:
        note = MaintenanceNote(start_ms=1, end_ms=2, user="ann")
        await RecoveryNotes(store, operator.root).maintenance.put("b1:3181", note)

    before = operator.tree()
    with TerminalSession("cluster", verb, **operator.environment) as session:
        session.wait_for(f"Type {instance_id} to continue:")
        operator.on_store(start)
        session.type(f"{instance_id}\n")
        assert session.exit_code() == 5, session.screen
    assert "nothing was changed: something has changed since the plan was made" in session.screen
    assert (operator.tree(), operator.backups()) == (before, [])


def test_a_plan_is_shown_saved_and_applied_while_it_fits(operator: Operator, tmp_path: Path) -> None:
    instance_id = started(operator)
    plan_file = str(tmp_path / "plan.json")
    before = operator.tree()
    shown = operator.succeed("cluster", "nuke", "--dry-run").json()
    assert operator.succeed("cluster", "nuke", "--plan-out", plan_file).json() == shown
    assert {
        item["path"].rpartition("/")[2]: (item["action"], item["nodes"], item["ledgers"]) for item in shown["items"]
    } == {
        "00": ("delete", 5, 3),
        "INSTANCEID": ("delete", 1, 0),
        "LAYOUT": ("delete", 1, 0),
        "available": ("delete", 2, 0),
    }
    assert operator.tree() == before
    operator.on_store(lambda store: store.set(f"{operator.root}/00/0000/L0001", before["00/0000/L0001"].data, 0))
    changed = operator.run("cluster", "nuke", "--apply", plan_file, "--confirm", instance_id)
    assert changed.exit_code == 5
    assert f"{operator.root}/00: digest" in changed.stderr
    operator.succeed("cluster", "nuke", "--plan-out", plan_file)
    operator.succeed("cluster", "nuke", "--apply", plan_file, "--confirm", instance_id)
    assert operator.tree() == {}
    late = operator.run("cluster", "nuke", "--apply", plan_file, "--confirm", instance_id)
    assert (late.exit_code, "the saved plan no longer fits" in late.stderr) == (5, True)
    assert operator.succeed("cluster", "nuke", "--plan-out", plan_file).json()["changes"] == 0
    assert not operator.succeed("cluster", "nuke", "--apply", plan_file).json()["removed"]


def test_nuke_where_nothing_is(operator: Operator) -> None:
    assert operator.succeed("cluster", "nuke").json()["removed"] is False
    missing = operator.run("cluster", "format", "--confirm", "x")
    assert (missing.exit_code, missing.stdout) == (4, "")


def test_nuke_refuses_what_is_not_bookkeepers(operator: Operator) -> None:
    instance_id = started(operator)
    operator.on_store(lambda store: store.create(f"{operator.root}/mine"))
    before = operator.tree()
    result = operator.run("cluster", "nuke", "--confirm", instance_id)
    assert result.exit_code == 3
    assert f"{operator.root}/mine does not belong to BookKeeper" in result.stderr
    assert operator.tree() == before
    operator.succeed("cluster", "format", "--confirm", instance_id)
    assert "mine" in operator.tree()


def test_a_cluster_without_an_instance_id_is_named_by_its_root(operator: Operator) -> None:
    operator.on_store(lambda store: store.create(f"{operator.root}/available/readonly", make_parents=True))
    assert operator.run("cluster", "nuke", "--confirm", "None").exit_code == 3
    operator.succeed("cluster", "nuke", "--confirm", operator.root)
    assert operator.tree() == {}


def test_a_cluster_whose_layout_cannot_be_read_can_be_saved_and_formatted(operator: Operator, tmp_path: Path) -> None:
    instance_id = started(operator)
    operator.on_store(lambda store: store.set(f"{operator.root}/LAYOUT", b"junk", 0))
    any_layout = operator.environment["BKCTL_METADATA_URI"].replace("hierarchical", "null")
    refused = operator.run("cluster", "backup", str(tmp_path / "b"), "--metadata-uri", any_layout)
    assert refused.exit_code == 12
    assert "cannot parse LAYOUT" in refused.stderr
    operator.succeed("cluster", "backup", str(tmp_path / "b"))
    operator.succeed("cluster", "format", "--confirm", instance_id)
    assert operator.tree()["LAYOUT"] == java_tree("init hierarchical")["LAYOUT"]


@pytest.mark.parametrize("verb", ["format", "nuke"])
def test_no_permission(operator: Operator, verb: str) -> None:
    instance_id = started(operator)
    client = KazooClient(operator.uri.servers)
    client.start()
    try:
        client.set_acls(operator.root, [make_digest_acl("admin", "secret", all=True)])
        client.set_acls(f"{operator.root}/available", [make_digest_acl("admin", "secret", all=True)])
    finally:
        client.stop()
        client.close()
    result = operator.run("cluster", verb, "--confirm", instance_id)
    assert result.exit_code == 11
    assert result.stderr.count("\n") == 1
    assert "no permission" in result.stderr


def test_no_permission_to_delete_stops_before_the_first_change(operator: Operator) -> None:
    """Everything can be read; the root's children cannot be deleted."""
    instance_id = started(operator)
    before = operator.tree()
    client = KazooClient(operator.uri.servers)
    client.start()
    try:
        readable = [make_digest_acl("admin", "secret", all=True), *_world_readable()]
        client.set_acls(operator.root, readable)
        client.set_acls(f"{operator.root}/available", readable)
        for verb in ("format", "nuke"):
            result = operator.run("cluster", verb, "--confirm", instance_id)
            assert result.exit_code == 11, result.stderr
            assert "no permission" in result.stderr.splitlines()[-1]
            assert operator.tree() == before
    finally:
        client.stop()
        client.close()


def _world_readable() -> list[object]:
    from kazoo.security import make_acl

    return [make_acl("world", "anyone", read=True)]


def run_with_small_files(operator: Operator, *arguments: str, bytes_max: int = 600) -> subprocess.CompletedProcess[str]:
    """As on a disk that has become full."""
    return subprocess.run(
        bkctl_command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=bkctl_environment(**operator.environment),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max)),
        check=False,
    )


def test_a_full_disk_stops_everything_before_it_begins(operator: Operator, tmp_path: Path) -> None:
    instance_id = started(operator, 200)
    before = operator.tree()
    saved = run_with_small_files(operator, "cluster", "backup", str(tmp_path / "b"))
    assert saved.returncode == 1
    assert "File too large" in saved.stderr
    assert not [name for name in os.listdir(tmp_path) if name.startswith("b")]
    for verb in ("format", "nuke"):
        result = run_with_small_files(operator, "cluster", verb, "--confirm", instance_id)
        assert result.returncode == 3
        assert "nothing was changed" in result.stderr
        assert operator.tree() == before
    assert operator.backups() == []
    for arguments in (
        ("ledger", "export", "--all", "--out"),
        ("ledger", "export", "--all", "--native", "--out"),
        ("cluster", "nuke", "--plan-out"),
    ):
        path = tmp_path / "-".join(word.strip("-") for word in arguments)
        result = run_with_small_files(operator, *arguments, str(path), bytes_max=60)
        assert (result.returncode, result.stdout) == (1, "")
        name = path / "0.ledger" if "--native" in arguments else path
        assert result.stderr.splitlines()[-1] == f"error: {name}: File too large"
        assert not list(tmp_path.glob("**/*.tmp"))


def test_a_backup_never_replaces_a_file(operator: Operator, tmp_path: Path) -> None:
    started(operator)
    path = tmp_path / "b"
    path.write_text("precious")
    result = operator.run("cluster", "backup", str(path))
    assert (result.exit_code, path.read_text()) == (5, "precious")
    assert operator.run("cluster", "backup", str(tmp_path / "no" / "directory")).exit_code == 1


def test_what_restore_refuses(operator: Operator, tmp_path: Path) -> None:
    instance_id = started(operator)
    path = tmp_path / "b"
    operator.succeed("cluster", "backup", str(path))
    data = path.read_bytes()

    def refused(code: int, sentence: str, *arguments: str) -> None:
        before = operator.tree()
        result = operator.run("cluster", "restore", *arguments, "--confirm", instance_id)
        assert (result.exit_code, result.stdout) == (code, ""), result.stderr
        assert sentence in result.stderr
        assert operator.tree() == before

    refused(1, "No such file", str(tmp_path / "absent"))
    elsewhere = operator.environment["BKCTL_METADATA_URI"] + "-else"
    refused(3, "the backup is of", str(path), "--metadata-uri", elsewhere)
    flat = operator.environment["BKCTL_METADATA_URI"].replace("hierarchical", "flat")
    refused(13, "the cluster was created as hierarchical", str(path), "--metadata-uri", flat)
    path.write_bytes(data[:-20])
    refused(12, "is damaged", str(path))
    path.write_bytes(data[:400] + bytes([data[400] ^ 1]) + data[401:])
    refused(12, "is damaged", str(path))
    path.write_bytes(data)
    operator.succeed("cluster", "format", "--confirm", instance_id)
    refused(3, "is instance", str(path))


def test_restore_of_a_cluster_with_damaged_ledgers(operator: Operator, tmp_path: Path) -> None:
    planted = {path: node for path, node in java_tree("hierarchical at work").items() if not node.is_ephemeral}

    async def put(store: MetadataStore) -> None:
        await plant(store, operator.root, planted)

    operator.on_store(put)
    instance_id, path = operator.instance_id(), str(tmp_path / "b")
    saved = operator.succeed("cluster", "backup", path)
    assert saved.json()["faults"] == 1
    assert "922/3372/0368/5477/L5807" in saved.stderr
    operator.succeed("cluster", "nuke", "--confirm", instance_id)
    refused = operator.run("cluster", "restore", path, "--confirm", instance_id)
    assert refused.exit_code == 3
    assert "--skip-invalid" in refused.stderr
    assert operator.tree() == {}
    partial = operator.run("cluster", "restore", path, "--confirm", instance_id, "--skip-invalid")
    assert partial.exit_code == 9
    assert partial.json()["invalid_left_out"] == 1
    assert "922/3372/0368/5477/L5807" not in operator.tree()


def test_conflicts_are_told_and_left(operator: Operator, tmp_path: Path) -> None:
    instance_id, path = started(operator, 4), str(tmp_path / "b")
    operator.succeed("cluster", "backup", path)

    async def change(store: MetadataStore) -> None:
        node = await store.get(f"{operator.root}/00/0000/L0001")
        await store.set(f"{operator.root}/00/0000/L0001", node.data.replace(b"b1:3181", b"b2:3181"), 0)
        await store.delete(f"{operator.root}/00/0000/L0002")

    operator.on_store(change)
    planned = operator.succeed("cluster", "restore", path, "--dry-run").json()["summary"]
    assert "the id generators are missing: new ledger ids will start at 4294967296" in planned
    partial = operator.run("cluster", "restore", path, "--confirm", instance_id)
    assert partial.exit_code == 9
    report = partial.json()
    assert (report["ledgers_created"], report["conflicts"], report["first_new_ledger_id"]) == (1, 1, "4294967296")
    [conflict] = report["conflict_items"]
    assert conflict["path"] == "00/0000/L0001"
    assert "treated as the newer one" in conflict["reason"]
    planned = operator.succeed("cluster", "restore", path, "--dry-run").json()["summary"]
    assert not [sentence for sentence in planned if "ledger ids" in sentence]
    again = operator.run("cluster", "restore", path, "--confirm", instance_id)
    assert again.exit_code == 5
    assert again.json()["conflicts"] == 1


def test_a_part_of_a_cluster_is_not_shown_as_the_whole(operator: Operator, tmp_path: Path) -> None:
    instance_id = started(operator)
    reads = [("ledger", "list"), ("ledger", "list", "--count"), ("ledger", "show", "0"), ("ledger", "export", "--all")]
    reads += [("cluster", "info"), ("cluster", "instance-id"), ("cluster", "nuke", "--dry-run"), ("bookie", "list")]
    assert [operator.succeed(*read).stderr for read in reads] == [""] * len(reads)
    operator.on_store(lambda store: store.set(operator.root, RESTORE_MARK + b"00ff", ANY_VERSION))
    before = operator.tree()
    for read in reads:
        assert operator.succeed(*read).stderr == (
            f"warning: a restore into {operator.root} is unfinished, so only a part of the cluster is there: run bkctl "
            "cluster restore again with the same backup, or remove what it restored with bkctl cluster nuke\n"
        )
    refused = operator.run("cluster", "backup", str(tmp_path / "b"))
    assert (refused.exit_code, refused.stdout, list(tmp_path.glob("b*"))) == (3, "", [])
    assert refused.stderr.startswith(f"error: nothing was saved: a restore into {operator.root} is unfinished")
    for more in ((), ("--if-not-exists",), ("--if-not-exists", "--dry-run")):
        init = operator.run("cluster", "init", *more)
        assert (init.exit_code, init.stdout) == (3, "")
        assert init.stderr.startswith(f"error: nothing was changed: a restore into {operator.root} is unfinished")
    assert operator.tree() == before
    operator.succeed("cluster", "nuke", "--confirm", instance_id)


def test_the_health_check_switch(operator: Operator) -> None:
    assert operator.run("cluster", "health-check", "disable").exit_code == 4
    started(operator)
    assert operator.succeed("cluster", "health-check", "status").json()["enabled"] is True
    rehearsed = operator.succeed("cluster", "health-check", "disable", "--dry-run").json()
    assert rehearsed["items"] == [{"action": "create", "path": f"{operator.root}/disableHealthCheck"}]
    disabled = operator.succeed("cluster", "health-check", "disable")
    assert disabled.json()["changed"] is True
    assert "to undo: bkctl cluster health-check enable" in disabled.stderr
    assert operator.tree()["disableHealthCheck"].data == b""
    assert operator.succeed("cluster", "health-check", "disable").json()["changed"] is False
    plan = operator.succeed("cluster", "health-check", "disable", "--dry-run").json()
    assert (plan["items"], plan["summary"]) == ([], ["the health check is already disabled"])
    assert operator.succeed("cluster", "health-check", "status", "-o", "name").stdout == "no\n"
    assert operator.run("cluster", "health-check", "enable", BKCTL_READ_ONLY="1").exit_code == 3
    assert operator.succeed("cluster", "health-check", "enable").json()["enabled"] is True
    assert "disableHealthCheck" not in operator.tree()


def test_warnings_of_bad_names_move_no_cursor(operator: Operator) -> None:
    """Also those that come up from the reading itself; a right-to-left mark turns the rest of the line round."""
    operator.succeed("cluster", "init")
    operator.on_store(lambda store: store.create(f"{operator.root}/available/\u202ekoob"))
    told = operator.succeed("cluster", "info").stderr
    assert "\\u202ekoob is not a bookie id" in told
    assert "\u202e" not in told

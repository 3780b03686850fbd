from __future__ import annotations

import base64
import datetime
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.commands.safety.state_directory import Trash
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.store import Node, NodeStat
from tests.commands.safety.conftest import WrittenContext

NODE = Node(b"\x00secret", NodeStat(version=3, ctime_ms=5, mtime_ms=6, ephemeral_owner=0, children_count=0))


def test_what_is_kept_can_be_read_back(make_context: Callable[..., WrittenContext]) -> None:
    with Trash(make_context().settings, "cookie delete", "abc") as trash:
        trash.keep("delete", "/ledgers/cookies/b1", NODE)
        path = trash.path
        assert path is not None
        trash.keep_all("set", [("/a", NODE), ("/b", NODE)])
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [(line["action"], line["path"], line["version"], line["ctime_ms"]) for line in lines] == [
        ("delete", "/ledgers/cookies/b1", 3, 5),
        ("set", "/a", 3, 5),
        ("set", "/b", 3, 5),
    ]
    assert {line["command"] for line in lines} == {"cookie delete"}
    assert base64.b64decode(lines[0]["data"]) == NODE.data
    assert path.endswith("-abc.jsonl")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    for directory in (os.path.dirname(path), str(make_context().directory)):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_nothing_thrown_away_leaves_no_file(make_context: Callable[..., WrittenContext]) -> None:
    with Trash(make_context().settings, "c", "abc"):
        pass
    assert not make_context().directory.exists()


def test_old_files_go_and_others_stay(make_context: Callable[..., WrittenContext]) -> None:
    directory = make_context().directory / "trash"
    directory.mkdir(parents=True)
    names = ["20010101T000000Z-ab12.jsonl", "99990101T000000Z-ab12.jsonl", "20010101-mine.jsonl", "notes"]
    for name in names:
        (directory / name).write_text("x")
    with Trash(make_context().settings, "c", "abc") as trash:
        trash.server_time = datetime.datetime.now(datetime.UTC)
        trash.keep("set", "/a", NODE)
        assert trash.path is not None
        assert sorted(os.listdir(directory)) == sorted([*names[1:], os.path.basename(trash.path)])


def test_no_file_goes_while_one_of_two_clocks_is_wrong(make_context: Callable[..., WrittenContext]) -> None:
    directory = make_context().directory / "trash"
    years = [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2001, 2099)]
    directory.mkdir(parents=True)
    fresh = directory / "20001231T000000Z-ab12.jsonl"
    fresh.write_text("x")
    kept: list[str | None] = [str(fresh)]
    for server_time in (years[0], None, years[0]):
        with Trash(make_context().settings, "c", f"{len(kept)}") as trash:
            trash.server_time = server_time
            trash.keep("set", "/a", NODE)
            kept.append(trash.path)
    assert {*kept} == {str(each) for each in directory.iterdir()}
    fresh.unlink()
    kept.remove(str(fresh))
    for server_time in (years[1], datetime.datetime.now(datetime.UTC)):
        with Trash(make_context().settings, "c", f"{len(kept)}") as trash:
            trash.server_time = server_time
            trash.keep("set", "/a", NODE)
            kept.append(trash.path)
    assert {*kept} == {str(each) for each in directory.iterdir()}


def test_what_cannot_be_kept_must_not_be_changed(tmp_path: Path, make_context: Callable[..., WrittenContext]) -> None:
    (tmp_path / "file").write_text("")
    for directory, sentence in ((str(tmp_path / "file" / "x"), "BKCTL_STATE_DIR"), ("", "set BKCTL_STATE_DIR")):
        with (
            Trash(make_context(state_directory=directory).settings, "c", "abc") as trash,
            pytest.raises(RefusedError, match=sentence),
        ):
            trash.keep("set", "/a", NODE)


def test_a_full_disk(make_context: Callable[..., WrittenContext]) -> None:
    directory = make_context().directory / "trash"
    directory.mkdir(parents=True)
    with Trash(make_context().settings, "c", "abc") as trash:
        trash.keep("set", "/a", NODE)
        assert trash._descriptor is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, trash._descriptor)
        os.close(full)
        with pytest.raises(RefusedError, match=r"cannot save the former data .*: No space left"):
            trash.keep("set", "/b", NODE)

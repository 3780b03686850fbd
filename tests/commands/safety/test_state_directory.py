from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from bkctl.commands.config import Settings
from bkctl.commands.safety.state_directory import append_synced, state_directory
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.new_file import whole_file, write_whole
from bkctl.storage.adapters.filesystem import open_to_append


def mode_of(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_directories_are_the_owners_alone(tmp_path: Path) -> None:
    settings = Settings(state_directory=str(tmp_path / "a" / "b"))
    assert state_directory(settings) == str(tmp_path / "a" / "b")
    assert state_directory(settings, "trash") == str(tmp_path / "a" / "b" / "trash")
    assert mode_of(tmp_path / "a" / "b") == mode_of(tmp_path / "a" / "b" / "trash") == 0o700


def test_a_directory_that_cannot_be_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="set BKCTL_STATE_DIR"):
        state_directory(Settings())
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match=r"cannot create the directory .* \(Not a directory\)"):
        state_directory(Settings(state_directory=str(tmp_path / "file" / "below")))


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for data in (b"1\n", b"2\n"):
        descriptor = open_to_append(str(path))
        append_synced(descriptor, data)
        os.close(descriptor)
    assert path.read_bytes() == b"1\n2\n"
    assert mode_of(path) == 0o600


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    write_whole(str(path), b"first")
    write_whole(str(path), b"second")
    assert path.read_bytes() == b"second"
    assert mode_of(path) == 0o600
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        write_whole(str(tmp_path / "directory"), b"third")
    assert raised.value.filename == str(tmp_path / "directory")
    assert sorted(os.listdir(tmp_path)) == ["directory", "plan"]


def test_a_pipe_or_a_device_is_never_replaced_and_a_link_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file") as raised:
        write_whole(str(tmp_path / "pipe"), b"data")
    assert raised.value.filename == str(tmp_path / "pipe")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/plan")
    for data in (b"first", b"second"):
        write_whole(str(tmp_path / "link"), data)
        assert (tmp_path / "there" / "plan").read_bytes() == data
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "there"]


def test_a_new_file_never_replaces_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "export"
    path.write_bytes(b"first")
    with pytest.raises(ConflictError, match="already exists: specify a new file"):
        write_whole(str(path), b"second", is_new=True)
    late = tmp_path / "late"

    def lose_the_race() -> None:
        with whole_file(str(late), is_new=True) as write:
            write(b"ours")
            late.write_bytes(b"created meanwhile")

    with pytest.raises(ConflictError, match="already exists: specify a new file"):
        lose_the_race()
    assert (path.read_bytes(), late.read_bytes()) == (b"first", b"created meanwhile")
    write_whole(str(tmp_path / "new"), b"whole", is_new=True)
    assert (tmp_path / "new").read_bytes() == b"whole"
    assert mode_of(tmp_path / "new") == 0o600
    assert sorted(os.listdir(tmp_path)) == ["export", "late", "new"]


def test_a_planted_link_leads_nowhere(tmp_path: Path) -> None:
    """Where the kernel's protection of links is off, or the directory is not sticky, every user can plant them."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    for name in (f"plan.{os.getpid()}.tmp", "plan.tmp", "plan.1.tmp"):
        (shared / name).symlink_to(victim)
    write_whole(str(shared / "plan"), b"ours")
    with whole_file(str(shared / "new"), is_new=True) as write:
        (temporary,) = (each for each in shared.iterdir() if each.name.startswith("new."))
        assert mode_of(temporary) == 0o600
        write(b"ours")
    assert (victim.read_bytes(), (shared / "plan").read_bytes()) == (b"precious", b"ours")
    assert len(temporary.name) >= len("new..tmp") + 16, "a name that can be guessed"


def test_the_name_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_whole(str(tmp_path / "plan"), b"data")
    assert synced[0].startswith(str(tmp_path / "plan."))
    assert synced[1:] == [str(tmp_path)]

"""The parts of the audit trail that stand alone; its lines are tested with the changes they tell of."""

from __future__ import annotations

import getpass
import os

import pytest

from bkctl.commands.safety.state_directory import mask_secrets, user_name


def test_secrets_are_masked() -> None:
    words = ["--set", "zkPassword=x", "a.secretKey=1=2", "token=", "BK_auth_credentials=y", "password-file", "path=/x"]
    assert mask_secrets(words) == [
        "--set",
        "zkPassword=***",
        "a.secretKey=***",
        "token=",
        "BK_auth_credentials=***",
        "password-file",
        "path=/x",
    ]


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name() == getpass.getuser()

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert user_name() == str(os.getuid())

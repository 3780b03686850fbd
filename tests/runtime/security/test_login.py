"""Logins from settings: what is refused at the start, and files that change."""

from __future__ import annotations

import fcntl
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.errors import AuthenticationError, ConfigurationError
from bkctl.runtime.security.client_login import PasswordLogin, read_client_login
from bkctl.runtime.security.exchange import BookieExchange, ClientExchange
from bkctl.runtime.security.login import bookie_logins, client_logins
from bkctl.runtime.security.secrets import read_secret
from bkctl.runtime.security_config import BookieLoginConfig, ClientLoginConfig, LoginMechanism

HOST = "bookie-1"


def write_users(path: Path, **passwords: str) -> None:
    options = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    path.write_text(f"Bookie {{ org.example.Digest required {options}; }};\nOther {{ org.example.Other required; }};\n")


def log_in(client: ClientExchange, bookie: BookieExchange) -> str | None:
    """Run a login; the identity of the client."""
    client.answer(bookie.answer(client.answer(bookie.answer(client.first_token()))))
    assert client.is_complete
    return bookie.identity


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "needs bookie_client.sasl.username and bookie_client.sasl.password"),
        ({"username": "a"}, "needs bookie_client.sasl.username and bookie_client.sasl.password"),
        ({"username": "a", "password": "sesame"}, "give its location as file:PATH, env:VARIABLE or fd:NUMBER"),
        (
            {"username": "a", "password": "env:NONE"},
            "sasl.password is empty in the environment variable NONE",
        ),
        ({"username": "a", "password": "env:SET", "principal": "b"}, "principal has no effect with DIGEST-MD5"),
        ({"username": "a", "password": "env:SET", "keytab": "/k"}, "keytab has no effect with DIGEST-MD5: remove it"),
        ({"mechanism": LoginMechanism.GSSAPI, "username": "a"}, "sasl.username has no effect with GSSAPI: remove it"),
        ({"mechanism": LoginMechanism.GSSAPI, "password": "env:SET"}, "sasl.password has no effect with GSSAPI"),
        ({"jaas_file": "/j", "username": "a"}, "sasl.username has no effect with bookie_client.sasl.jaas_file"),
        ({"jaas_file": "/none"}, "cannot read the JAAS file /none: No such file"),
    ],
)
def test_settings_of_a_client_that_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        client_logins(ClientLoginConfig(**settings), {"SET": "sesame"})
    assert "sesame" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"jaas_file": None}, "need the JAAS file with the users: set jaas_file in bookie.sasl"),
        ({"jaas_file": "/none"}, "cannot read the JAAS file /none: No such file"),
        ({"jaas_section": "Absent"}, "jaas.conf has no section Absent; it has Bookie, Other"),
        ({"jaas_section": "Other"}, 'section Other of .*jaas.conf has no user: add user_NAME="PASSWORD"'),
        ({"allowed_ids": "(a"}, r"allowed_ids '\(a' is not a regular expression"),
    ],
)
def test_settings_of_a_bookie_that_are_refused(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    write_users(tmp_path / "jaas.conf", bookkeeper="sesame")
    with pytest.raises(ConfigurationError, match=reason):
        bookie_logins(BookieLoginConfig(**({"jaas_file": str(tmp_path / "jaas.conf")} | settings)))


@pytest.mark.parametrize(
    ("content", "reason"), [(b"Bookie {", "jaas.conf: line 1 of the JAAS file"), (b"\xff", "jaas.conf is not UTF-8")]
)
def test_a_jaas_file_that_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "jaas.conf").write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason):
        bookie_logins(BookieLoginConfig(jaas_file=str(tmp_path / "jaas.conf")))


def test_kerberos_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    sentence = r"needs the package gssapi, which is not installed: pip install 'bkctl\[kerberos\]'"
    with pytest.raises(ConfigurationError, match=f"the login of bookie_client.sasl {sentence}"):
        client_logins(ClientLoginConfig(mechanism=LoginMechanism.GSSAPI), {})
    path = tmp_path / "jaas.conf"
    path.write_text("Bookie { com.sun.security.auth.module.Krb5LoginModule required; };")
    with pytest.raises(ConfigurationError, match=f"the section Bookie of {path} {sentence}"):
        bookie_logins(BookieLoginConfig(jaas_file=str(path)))


def test_a_client_by_a_jaas_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read again when it changes, as a password is."""
    users, path = tmp_path / "users.conf", tmp_path / "client.conf"
    write_users(users, bookkeeper="sesame")
    section = 'BookKeeper {{ a.DigestLoginModule required username="bookkeeper" password="{}"; }};'
    path.write_text(section.format("sesame"))
    path.chmod(0o644)
    new_bookie = bookie_logins(BookieLoginConfig(jaas_file=str(users)))
    new_client = client_logins(ClientLoginConfig(jaas_file=str(path)), {})
    assert log_in(new_client(HOST), new_bookie()) == "bookkeeper"
    assert f"{path} contains passwords and is readable by other users: chmod 600 {path}" in caplog.text
    write_users(users, bookkeeper="after-that")
    path.write_text(section.format("after-that"))
    assert log_in(new_client(HOST), new_bookie()) == "bookkeeper"


@pytest.mark.parametrize(
    ("content", "settings", "reason"),
    [
        ("Client { a.DigestLoginModule required; };", {}, "has no section BookKeeper; it has Client"),
        ("BookKeeper { a.Digest required username=a; };", {}, 'has no login: add username="NAME" password="PASSWORD"'),
        (
            "BookKeeper { a.Digest required username=a password=sesame; };",
            {"mechanism": LoginMechanism.GSSAPI},
            "mechanism is GSSAPI, but section BookKeeper of .* has no Krb5LoginModule",
        ),
        ("BookKeeper { a.Krb5LoginModule required useKeyTab=true; };", {}, "has useKeyTab, but no keyTab"),
    ],
)
def test_sections_of_a_client_that_are_refused(
    tmp_path: Path, content: str, settings: dict[str, Any], reason: str
) -> None:
    (tmp_path / "jaas.conf").write_text(content)
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        client_logins(ClientLoginConfig(jaas_file=str(tmp_path / "jaas.conf"), **settings), {})
    assert "sesame" not in str(refusal.value)


def test_a_login_does_not_show_its_password() -> None:
    login = read_client_login(ClientLoginConfig(username="a", password="env:SET"), "table", {"SET": "sesame"})
    assert isinstance(login, PasswordLogin)
    assert (login.password, "sesame" in repr(login)) == ("sesame", False)


def test_a_password_from_a_file_descriptor() -> None:
    """A pipe has it only once, a job of hours logs in again and again."""
    reader, writer = os.pipe()
    os.write(writer, b"sesame\n")
    os.close(writer)
    os.set_inheritable(reader, True)
    new_client = client_logins(ClientLoginConfig(username="a", password=f"fd:{reader}"), {})
    os.close(reader)
    assert new_client(HOST) is not new_client(HOST)
    assert read_secret(f"fd:{reader}", "it", {}) == "sesame"
    with pytest.raises(ConfigurationError, match="cannot read it from the file descriptor x: it is not a number"):
        read_secret("fd:x", "it", {})


def test_a_descriptor_that_this_process_opened_is_not_read() -> None:
    """The end of a pipe that this process keeps open would never come."""
    reader, writer = os.pipe()
    own = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 500)  # what has been read of a lower number is remembered
    with open(reader, "rb"), open(writer, "wb"), open(own, "rb"):
        for number in (own, 999, 1 << 40):
            with pytest.raises(ConfigurationError, match=f"{number}: it is not open: start bkctl with {number}<FILE"):
                read_secret(f"fd:{number}", "it", {})


def test_only_ids_that_match_as_a_whole_are_allowed(tmp_path: Path) -> None:
    write_users(tmp_path / "jaas.conf", bookkeeper="one", bookkeepers="two")
    new_bookie = bookie_logins(BookieLoginConfig(jaas_file=str(tmp_path / "jaas.conf"), allowed_ids="bookkeeper"))
    logins = {
        name: client_logins(ClientLoginConfig(username=name, password="env:SECRET"), {"SECRET": password})
        for name, password in (("bookkeeper", "one"), ("bookkeepers", "two"))
    }
    assert log_in(logins["bookkeeper"](HOST), new_bookie()) == "bookkeeper"
    with pytest.raises(AuthenticationError, match="'bookkeepers' does not match saslJaasClientAllowedIds"):
        log_in(logins["bookkeepers"](HOST), new_bookie())


def test_passwords_that_change(tmp_path: Path) -> None:
    """Both files may be replaced while a job runs; a new login uses the new password."""
    users, secret = tmp_path / "jaas.conf", tmp_path / "secret"
    write_users(users, bookkeeper="before")
    secret.write_text("before")
    secret.chmod(0o600)
    new_bookie = bookie_logins(BookieLoginConfig(jaas_file=str(users)))
    new_client = client_logins(ClientLoginConfig(username="bookkeeper", password=f"file:{secret}"), {})
    assert log_in(new_client(HOST), new_bookie()) == "bookkeeper"
    write_users(users, bookkeeper="after-that")
    with pytest.raises(AuthenticationError, match="wrong password"):
        log_in(new_client(HOST), new_bookie())
    secret.write_text("after-that")
    assert log_in(new_client(HOST), new_bookie()) == "bookkeeper"
    users.write_text("Bookie {")  # half written: the users of before are kept
    assert log_in(new_client(HOST), new_bookie()) == "bookkeeper"

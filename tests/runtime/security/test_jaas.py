"""JAAS files as operators have them, and broken ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.jaas import JaasSection, parse_jaas

FILE = """
// the bookie's own
Bookie {
  org.apache.zookeeper.server.auth.DigestLoginModule required
    user_bookkeeper="say \\"friend\\""   /* several
    lines */
    user_other=plain;
};
# Kerberos
BookKeeper {
  com.sun.security.auth.module.Krb5LoginModule REQUIRED
  useKeyTab=true keyTab="/etc/bk.keytab" principal="bookkeeper/host@REALM";
  com.example.Other optional useKeyTab=false debug="true";
};
"""


def test_a_file_with_comments_quotes_and_two_modules() -> None:
    assert parse_jaas(FILE) == {
        "Bookie": JaasSection(
            "org.apache.zookeeper.server.auth.DigestLoginModule",
            {"user_bookkeeper": 'say "friend"', "user_other": "plain"},
        ),
        "BookKeeper": JaasSection(
            "com.sun.security.auth.module.Krb5LoginModule",
            {
                "useKeyTab": "true",
                "keyTab": "/etc/bk.keytab",
                "principal": "bookkeeper/host@REALM",
                "debug": "true",
            },
        ),
    }
    assert parse_jaas(" // nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A {", "line 1 of the JAAS file: the class of a login module is missing"),
        ("A\n{ b required x=; };", "line 2 of the JAAS file: the value of an option is missing"),
        ("A { b x=y; };", "line 1 of the JAAS file: .* is missing after the login module"),
        ('A {\n b required\n x="1', "line 3 of the JAAS file: a quote that opens here does not close"),
        ("A { };", "line 1 of the JAAS file: the section A has no login module"),
        ("A { b required; }", "line 1 of the JAAS file: ';' is missing"),
        ("A b required; };", "line 1 of the JAAS file: '{' is missing"),
        ("A { b required; };\nA { b required; };", "line 2 of the JAAS file: the section A is there twice"),
        ("A { b required x y; };", "line 1 of the JAAS file: '=' is missing"),
        ("};", "line 1 of the JAAS file: the name of a section"),
    ],
)
def test_a_broken_file(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        parse_jaas(text)


def refusal_of(text: str) -> str:
    """Why a file is refused; empty if it is not."""
    try:
        parse_jaas(text)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_a_part_of_a_password_is_not_shown() -> None:
    assert "word" not in refusal_of("A { b required user_c=pass;word is; };")


@given(st.integers(0, len(FILE) - 1))
def test_a_file_cut_anywhere_shows_no_password(end: int) -> None:
    refusal = refusal_of(FILE[:end])
    assert "friend" not in refusal
    assert "plain" not in refusal


@given(st.text(alphabet='ab{};="\\/*#\n ', max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert re.match(r"line \d+ of the JAAS file: |\Z", refusal_of(text))

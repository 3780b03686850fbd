"""JAAS files: sections with a login module and its options, as Java reads them. Source: wire section 12.2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.security.secrets import warn_of_readers
from bkctl.storage.adapters.given_files import read_given_file

_TOKEN = re.compile(
    r'(?P<space>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)|"(?P<quoted>(?:[^"\\\n]|\\.)*)"|(?P<sign>[{};=])|(?P<word>[^\s{};="]+)',
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KERBEROS_MODULE = ".Krb5LoginModule"
_FLAGS = {"required", "requisite", "sufficient", "optional"}
_END = ""


class JaasSection(NamedTuple):
    """A section: the class of its (first) login module, and the options of all its modules."""

    module: str
    options: dict[str, str]

    @property
    def is_kerberos(self) -> bool:
        """Whether it logs in with Kerberos; otherwise with passwords, whatever the class of the module."""
        return self.module.endswith(_KERBEROS_MODULE)


def read_jaas_section(path: str, name: str) -> JaasSection:
    """A section of a file; ConfigurationError."""
    try:
        sections = parse_jaas(read_given_file(path).decode())
        if not all(each.is_kerberos for each in sections.values()):
            warn_of_readers(path, "passwords")
    except OSError as error:
        raise ConfigurationError(f"cannot read the JAAS file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the JAAS file {path} is not UTF-8") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if name not in sections:
        raise ConfigurationError(f"{path} has no section {name}; it has {', '.join(sections) or 'none'}")
    return sections[name]


class _Token(NamedTuple):
    text: str
    line: int
    is_sign: bool


def parse_jaas(text: str) -> dict[str, JaasSection]:
    """The sections of a file by name; ConfigurationError with the line, but no text of it.

    An unquoted password with a semicolon is a module for Java, too, so even names may be parts of passwords.
    """
    tokens = _Tokens(text)
    sections: dict[str, JaasSection] = {}
    while (name := tokens.take("the name of a section or the end of the file", may_end=True)) != _END:
        tokens.expect("{")
        if name in sections:
            raise tokens.wrong(f"the section {name} is there twice")
        sections[name] = _section(tokens, name)
        tokens.expect(";")
    return sections


class _Tokens:
    """The tokens of a file, one at a time."""

    def __init__(self, text: str) -> None:
        self._rest = _split(text)
        self._next = next(self._rest)

    def is_sign(self, sign: str) -> bool:
        """Whether this sign is next; if so it is taken."""
        found = self._next.is_sign and self._next.text == sign
        if found:
            self._next = next(self._rest)
        return found

    def expect(self, sign: str) -> None:
        """Take this sign."""
        if not self.is_sign(sign):
            raise self.wrong(f"'{sign}' is missing")

    def take(self, wanted: str, *, may_end: bool = False) -> str:
        """Take a word or quoted text."""
        token = self._next
        if token.is_sign and not (may_end and token.text == _END):
            raise self.wrong(f"{wanted} is missing")
        self._next = next(self._rest, token)
        return token.text

    def wrong(self, reason: str) -> ConfigurationError:
        """The error at this place."""
        return ConfigurationError(f"line {self._next.line} of the JAAS file: {reason}")


def _section(tokens: _Tokens, name: str) -> JaasSection:
    module: str | None = None
    options: dict[str, str] = {}
    while not tokens.is_sign("}"):
        found = tokens.take("the class of a login module")
        module = module or found
        flag = tokens.take("'required' or another flag after the login module")
        if flag.lower() not in _FLAGS:
            raise tokens.wrong(f"{' or '.join(sorted(_FLAGS))} is missing after the login module")
        while not tokens.is_sign(";"):
            option = tokens.take("';' after the options")
            tokens.expect("=")
            # As in Java, users of all modules count, and the first one of a name.
            options.setdefault(option, tokens.take("the value of an option"))
    if module is None:
        raise tokens.wrong(f"the section {name} has no login module")
    return JaasSection(module, options)


def _split(text: str) -> Iterator[_Token]:
    at = 0
    line = 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigurationError(f"line {line} of the JAAS file: a quote that opens here does not close")
        if match["quoted"] is not None:
            yield _Token(_ESCAPED.sub(r"\1", match["quoted"]), line, is_sign=False)
        elif match["space"] is None:
            yield _Token(match[0], line, is_sign=match["sign"] is not None)
        line += match[0].count("\n")
        at = match.end()
    yield _Token(_END, line, is_sign=True)

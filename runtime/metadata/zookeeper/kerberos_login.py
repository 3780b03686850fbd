"""GSSAPI for the ZooKeeper client library: its own needs the package kerberos, which is no longer maintained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from puresasl import mechanisms

from bkctl.runtime.errors import AuthenticationError
from bkctl.runtime.security.client_login import KerberosLogin
from bkctl.runtime.security.kerberos import GssapiClient


class GssapiMechanism(mechanisms.Mechanism):  # type: ignore[misc]  # pure-sasl is untyped
    """One login at one server, on the library's connection thread."""

    name = "GSSAPI"

    def __init__(self, sasl: Any, login: KerberosLogin, note: Callable[[str | None], None]) -> None:
        super().__init__(sasl)
        self._exchange = GssapiClient(sasl.service, sasl.host, login)
        self._note = note

    def process(self, challenge: bytes | None = None) -> bytes:
        """The answer to a token of the server; AuthenticationError, which ends the session."""
        try:
            token = self._exchange.first_token() if challenge is None else self._exchange.answer(challenge)
        except AuthenticationError as error:
            self._note(str(error))
            raise
        self.complete = self._exchange.is_complete
        if self.complete:
            self._note(None)
        return token


def add_mechanism() -> str:
    """Make the library use this class; its name there."""
    mechanisms.mechanisms[GssapiMechanism.name] = GssapiMechanism
    return GssapiMechanism.name

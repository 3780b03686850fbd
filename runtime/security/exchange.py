"""Exchange of tokens between a client that logs in and a bookie: what each mechanism implements. Source: wire 12.2."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

from bkctl.runtime.security_config import LoginMechanism

PLUGIN: Final = "sasl"
"""Name of the plugin in AUTH messages: Java has one for all mechanisms of SASL."""


class ClientExchange(Protocol):
    """One login of a client; pure: tokens in, tokens out. AuthenticationError ends it."""

    mechanism: ClassVar[LoginMechanism]

    def first_token(self) -> bytes:
        """The token of the first AUTH message; may be empty."""

    def answer(self, token: bytes) -> bytes:
        """The token that answers the bookie's; AuthenticationError."""

    @property
    def is_complete(self) -> bool:
        """Whether both sides have proven themselves."""


class BookieExchange(Protocol):
    """One login at a bookie, its side; pure. AuthenticationError ends it."""

    def answer(self, token: bytes) -> bytes:
        """The token that answers the client's; AuthenticationError."""

    @property
    def identity(self) -> str | None:
        """Who the client is, once the exchange is complete and the id is allowed."""

"""The other side of a login: the JDK's own SASL, in a process."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping
from typing import Self

from bkctl.runtime.metadata.zookeeper.embedded import find_java
from bkctl.runtime.security.exchange import ClientExchange

_SOURCE = os.path.join(os.path.dirname(__file__), "src", "main", "java", "bkctl", "interop", "SaslPeer.java")
_TIMEOUT_S = 120.0


class JavaPeer:
    """One login. Java compiles the source at its start, so no jar is needed. Use as a context manager."""

    def __init__(
        self,
        side: str,
        mechanism: str,
        *,
        host: str = "bookkeeper",
        user: str = "",
        password: str = "",
        authorization: str = "",
        jvm_flags: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [find_java(), "-XX:TieredStopAtLevel=1", *jvm_flags, _SOURCE, side, mechanism, host, user, authorization],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PASSWORD": password} | dict(environment or {}),
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=_TIMEOUT_S)

    def receive(self) -> str:
        """The next line: a token in base64, or the end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Java program ended without a result"
        return line.rstrip("\n")

    def token(self) -> bytes:
        """The next token."""
        line = self.receive()
        assert not line.startswith(("done", "failed")), line
        return base64.b64decode(line, validate=True)

    def send(self, token: bytes) -> None:
        """Give it a token."""
        assert self._process.stdin is not None
        self._process.stdin.write(base64.b64encode(token).decode() + "\n")
        self._process.stdin.flush()


def log_in_at_java(exchange: ClientExchange, peer: JavaPeer) -> str:
    """The whole login of our client; the last line of Java's bookie."""
    peer.send(exchange.first_token())
    while not exchange.is_complete:
        answer = exchange.answer(peer.token())
        if answer or not exchange.is_complete:
            peer.send(answer)
    line = peer.receive()
    return peer.receive() if line == "" else line

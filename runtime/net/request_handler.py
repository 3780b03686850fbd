"""What the listener asks of a bookie, and how the bookie answers. Source: wire section 5."""

from __future__ import annotations

from typing import Protocol

from runtime.protocol.messages import BookieAnswer, BookieCall, ReadAnswer, ReadCall


class Responder(Protocol):
    """Where the answer to a call goes: the connection it came from. Called on the loop.

    Each call is answered once; a run of adds may be answered in parts (``AddRun.cut``). Answers may come in any order;
    those to a connection that is gone are dropped.
    """

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        """Answer a call: with a status, or with what was asked for."""


class RequestHandler(Protocol):
    """What a bookie does with calls. Called on the loop, once per call.

    Reads wait for their turn; all other calls come in the order of their arrival.

    It must not wait; it answers through the connection now or later. Ids may be negative. If ``handle`` raises, the
    call is not answered; of a run of adds, what is still in it.
    """

    def handle(self, connection: Responder, call: BookieCall) -> None:
        """Do what was asked, and answer."""

    def read_from_memory(self, call: ReadCall) -> ReadAnswer | None:
        """The answer to a read if it is in memory: such a read does not wait. None says nothing about the disk."""

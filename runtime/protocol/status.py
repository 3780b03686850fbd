"""Status codes of the wire and their meaning as errors. Source: wire sections 3.2 and 4.2."""

from __future__ import annotations

import enum

from bkctl.runtime.errors import (
    AuthenticationRequiredError,
    BadRequestError,
    BookieError,
    BookieIOError,
    BookieReadOnlyError,
    BookieTimeoutError,
    BookieUnavailableError,
    FencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownLedgerStateError,
)


class Status(enum.IntEnum):
    """Outcome of one request to one bookie: the v3 codes, and negative values for outcomes without an answer."""

    OK = 0
    NO_SUCH_LEDGER = 402
    NO_SUCH_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    TOO_MANY_REQUESTS = 506
    UNKNOWN_LEDGER_STATE = 507
    UNAVAILABLE = -8
    TIMEOUT = -23
    AUTHENTICATION_REQUIRED = -102
    """The bookie and this client did not agree on TLS, certificates or a login. On an open connection: UNAUTHORIZED
    without the message of the operation, because the bookie did not look at the request (wire 12.2)."""


STATUS_OF_CODE = {int(status): status for status in Status if status >= Status.OK}
"""By the code in v3 answers."""

_ERRORS: dict[Status, tuple[type[BookieError], str]] = {
    Status.NO_SUCH_LEDGER: (NoSuchLedgerError, "no such ledger"),
    Status.NO_SUCH_ENTRY: (NoSuchEntryError, "no such entry"),
    Status.BAD_REQUEST: (BadRequestError, "the request was rejected as malformed"),
    Status.IO_ERROR: (BookieIOError, "input/output error"),
    Status.UNAUTHORIZED: (UnauthorizedError, "wrong ledger password"),
    Status.BAD_VERSION: (BadRequestError, "the protocol version was rejected"),
    Status.FENCED: (FencedError, "the ledger is fenced"),
    Status.READ_ONLY: (BookieReadOnlyError, "the bookie is read-only"),
    Status.TOO_MANY_REQUESTS: (TooManyRequestsError, "too many requests"),
    Status.UNKNOWN_LEDGER_STATE: (UnknownLedgerStateError, "the bookie may have lost entries of the ledger"),
    Status.UNAVAILABLE: (BookieUnavailableError, "no connection"),
    Status.TIMEOUT: (BookieTimeoutError, "no response in time"),
    Status.AUTHENTICATION_REQUIRED: (
        AuthenticationRequiredError,
        "it serves only clients that use TLS or log in: set bookie_client.tls or bookie_client.sasl",
    ),
}


def error_of(status: Status, bookie_id: str, detail: str = "") -> BookieError:
    """The exception for a status other than OK."""
    error_class, sentence = _ERRORS[status]
    return error_class(bookie_id, f"{sentence} ({detail})" if detail else sentence)

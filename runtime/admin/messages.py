"""Requests to the admin interface and their answers, independent of the HTTP library."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from bkctl.runtime.admin.api import ErrorAnswer
from bkctl.runtime.errors import ConflictError, MetadataUnavailableError, RefusedError
from bkctl.storage.errors import BkctlError

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


class AdminRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose path and method matched a route."""

    query: Mapping[str, str]
    body: bytes
    places: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Values of the variable parts of the path, such as ``id`` in ``/jobs/{id}``."""

    def json(self) -> Any:
        """The body as JSON, or None if there is none; AdminError."""
        if not self.body.strip():
            return None
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise AdminError(Problem.INVALID, f"the body of the request is not JSON: {error}") from error


class AdminAnswer(msgspec.Struct, frozen=True):
    """Status, body and content type of an answer."""

    body: bytes
    status: int = 200
    content_type: str = JSON


def fields_of(request: AdminRequest, *names: str) -> dict[str, object]:
    """The members of the JSON object in the body, {} without a body; AdminError for others than ``names``."""
    value = request.json()
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise AdminError(Problem.INVALID, "the body of the request is not a JSON object")
    for name in value:
        if name not in names:
            raise AdminError(Problem.INVALID, f"unknown field in the body (known: {', '.join(names)})")
    return value


def truth(fields: Mapping[str, object], name: str) -> bool | None:
    """A boolean, as JSON has it or as a string, as Java's clients write it; None without one. AdminError."""
    value = fields.get(name)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if value is None or isinstance(value, bool):
        return value
    raise AdminError(Problem.INVALID, f"{name} is neither true nor false")


def json_answer(value: object, status: int = 200) -> AdminAnswer:
    """JSON with an indentation of two spaces, as Java's answers have it."""
    return AdminAnswer(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", status)


def text_answer(text: str) -> AdminAnswer:
    """Plain text."""
    return AdminAnswer(text.encode(), content_type=TEXT)


class Problem(enum.Enum):
    """Why a request failed: the word in the JSON answer, and the HTTP status."""

    INVALID = ("invalid", 400)
    UNAUTHORIZED = ("unauthorized", 401)
    NOT_PERMITTED = ("not permitted", 403)
    """To this client, as it is known from its certificate or token."""
    REFUSED = ("refused", 403)
    NOT_FOUND = ("not found", 404)
    METHOD = ("method not allowed", 405)
    TOO_SLOW = ("too slow", 408)
    CONFLICT = ("conflict", 409)
    TOO_LARGE = ("too large", 413)
    EXPECTATION = ("not supported", 417)
    INTERNAL = ("internal", 500)
    UNAVAILABLE = ("unavailable", 503)

    @property
    def word(self) -> str:
        """The value of ``problem`` in the answer."""
        return self.value[0]

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[1]


class AdminError(BkctlError):
    """A request that cannot be done."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


_PROBLEMS: Final = {
    RefusedError: Problem.REFUSED,
    ConflictError: Problem.CONFLICT,
    MetadataUnavailableError: Problem.UNAVAILABLE,
}


def error_answer(error: BkctlError) -> AdminAnswer:
    """The answer to a request that failed."""
    problem = problem_of(error)
    return json_answer(ErrorAnswer(str(error), problem.word), problem.status)


def problem_of(error: Exception) -> Problem:
    """The kind of a failure."""
    if isinstance(error, AdminError):
        return error.problem
    return next((each for kind, each in _PROBLEMS.items() if isinstance(error, kind)), Problem.INTERNAL)


Handler: TypeAlias = Callable[[AdminRequest], Awaitable[AdminAnswer]]


class Route(NamedTuple):
    """One method of one path. ``changes``: over TCP it needs the token.

    A part of the path in braces, such as ``{id}``, matches any one part.
    """

    method: str
    path: str
    handle: Handler
    changes: bool = False

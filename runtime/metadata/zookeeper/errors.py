"""Translates kazoo's errors to ours; part of the adapter ``store`` (decision 7)."""

from __future__ import annotations

from kazoo import exceptions as kazoo_errors

from bkctl.runtime.errors import (
    BadVersionError,
    MetadataAuthError,
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)


class _NoLoginError(kazoo_errors.SessionClosedRequireSaslError, kazoo_errors.AuthFailedError):  # type: ignore[misc]
    """The answer to a wrong password where sessions need a login. Kazoo's own class ends its thread with a traceback.

    As an AuthFailedError it ends the session, as a rejected login does elsewhere.
    """


kazoo_errors.EXCEPTIONS[kazoo_errors.SessionClosedRequireSaslError.code] = _NoLoginError

_MEANINGS: dict[type[Exception], tuple[type[MetadataError], str]] = {
    kazoo_errors.NoNodeError: (NoNodeError, "no such node"),
    kazoo_errors.NodeExistsError: (NodeExistsError, "node already exists"),
    kazoo_errors.BadVersionError: (BadVersionError, "changed by another process in the meantime"),
    kazoo_errors.NotEmptyError: (NotEmptyError, "node has children"),
    kazoo_errors.NoAuthError: (
        MetadataAuthError,
        "no permission: the node's ACL is for other users; log in as one of them (zookeeper.sasl or zookeeper.digest)",
    ),
    kazoo_errors.SessionClosedRequireSaslError: (
        MetadataAuthError,
        "ZooKeeper accepts only users that log in: set zookeeper.sasl",
    ),
    kazoo_errors.InvalidACLError: (MetadataAuthError, "secure ACLs need an authenticated ZooKeeper session"),
    kazoo_errors.AuthFailedError: (MetadataAuthError, "ZooKeeper rejected the user or the password of this session"),
    kazoo_errors.ConnectionLoss: (MetadataUnavailableError, "the connection to ZooKeeper was lost before the response"),
    kazoo_errors.ConnectionClosedError: (MetadataClosedError, "the connection to ZooKeeper is closed"),
    # After its subclass for a closed connection.
    kazoo_errors.SessionExpiredError: (SessionExpiredError, "the ZooKeeper session expired"),
    kazoo_errors.OperationTimeoutError: (MetadataUnavailableError, "ZooKeeper did not respond in time"),
    kazoo_errors.SessionMovedError: (MetadataUnavailableError, "the session moved to another ZooKeeper server"),
}


def translate(error: BaseException, path: str, *, is_of_parent: bool = False) -> MetadataError:
    """The MetadataError for a kazoo error, for the node at ``path``.

    ``is_of_parent``: the node was to be created or deleted, which the ACL of its parent permits.
    """
    if is_of_parent and isinstance(error, kazoo_errors.NoAuthError):
        path = path.rpartition("/")[0] or "/"
    for foreign, (ours, sentence) in _MEANINGS.items():
        if isinstance(error, foreign):
            return ours(f"{path}: {sentence}", path)
    return MetadataError(f"{path}: ZooKeeper answered {type(error).__name__}", path)


def is_at_fault(error: Exception) -> bool:
    """Whether a result in a failed transaction caused the failure; the other operations were only rolled back."""
    return isinstance(error, tuple(_MEANINGS))


def error_of(code: int) -> Exception:
    """Kazoo's error for the code of a server."""
    error: Exception = kazoo_errors.EXCEPTIONS[code]()
    return error


def is_unknown_request(error: BaseException | None) -> bool:
    """Whether the server is too old for a request."""
    return isinstance(error, kazoo_errors.UnimplementedError)

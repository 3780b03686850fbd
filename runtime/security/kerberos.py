"""SASL GSSAPI (RFC 4752) with Kerberos, both sides, for authentication only. Source: wire section 12.2.

Imports the package ``gssapi``, which only ``pip install 'bkctl[kerberos]'`` installs. Messages after the login are not
wrapped: TLS protects them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Final

import gssapi
from gssapi.exceptions import GSSError

from bkctl.runtime.errors import AuthenticationError, ConfigurationError
from bkctl.runtime.security.client_login import KerberosLogin
from bkctl.runtime.security_config import LoginMechanism

_TOKEN_BYTES_MAX: Final = 64 * 1024
"""A ticket with the groups of a Windows domain has up to 48 KiB. It bounds what a hostile token costs."""
_NO_LAYER: Final = 1
"""Bit of the security layers that stands for none."""
_NO_LAYER_OFFER: Final = bytes([_NO_LAYER, 0, 0, 0])
"""The layer, and the maximum size of wrapped messages: none."""


_NO_DETAILS: Final = {"Success", "Unknown error"}


class GssapiClient:
    """The client's side, with a ticket of a cache, or with one that it gets by a keytab, again before it expires."""

    mechanism: ClassVar = LoginMechanism.GSSAPI

    def __init__(self, service: str, host: str, login: KerberosLogin) -> None:
        self._target = f"{service}@{host}"
        self._login = login
        self._context: gssapi.SecurityContext | None = None
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        """Whether the bookie has proven its principal, and has been sent the last token."""
        return self._is_complete

    def first_token(self) -> bytes:
        """The service ticket; it asks the KDC for one if the cache has none. AuthenticationError."""
        try:
            name = None if self._login.principal is None else _principal(self._login.principal)
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(self._target, gssapi.NameType.hostbased_service),
                creds=gssapi.Credentials(
                    name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=_client_store(self._login)
                ),
                flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
                mech=gssapi.MechType.kerberos,
                usage="initiate",
            )
            _raise_at_once(self._context)
            return self._context.step() or b""
        except GSSError as error:
            check = "klist" if self._login.keytab is None else f"klist -k {self._login.keytab}"
            raise AuthenticationError(
                f"no Kerberos login at {self._target}: {_reason(error)}; check {check}"
            ) from error

    def answer(self, token: bytes) -> bytes:
        """The answer to a token of the bookie; AuthenticationError."""
        _check_size(token)
        if self._context is None or self._is_complete:
            raise AuthenticationError(f"{self._target} went on after the end of a login")
        try:
            if not self._context.complete:
                return self._context.step(token) or b""
            offer = self._context.unwrap(token).message
            if len(offer) != len(_NO_LAYER_OFFER) or not offer[0] & _NO_LAYER:
                raise AuthenticationError(
                    f"{self._target} asks for encryption by SASL, which is not supported: use TLS"
                )
            last = self._context.wrap(_NO_LAYER_OFFER + str(self._context.initiator_name).encode(), encrypt=False)
        except GSSError as error:
            raise AuthenticationError(f"{self._target} failed to prove its principal: {_reason(error)}") from error
        self._is_complete = True
        return bytes(last.message)


class GssapiBookie:
    """The bookie's side. ``service``: first part of the principal that tickets must be for.

    ``is_allowed``: whether a client's principal may use the bookie.
    """

    def __init__(self, credentials: gssapi.Credentials, service: str, is_allowed: Callable[[str], bool]) -> None:
        self._service = service
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        _raise_at_once(self._context)
        self._is_allowed = is_allowed
        self._has_offered = False
        self._identity: str | None = None

    @property
    def identity(self) -> str | None:
        """The client's principal, once it is proven."""
        return self._identity

    def answer(self, token: bytes) -> bytes:
        """The answer to a token of the client; AuthenticationError."""
        _check_size(token)
        if self._identity is not None:
            raise AuthenticationError("a client went on after the end of a login")
        try:
            if not self._context.complete:
                if not token:
                    raise AuthenticationError("a client began a login without a token; does it use DIGEST-MD5?")
                answer = self._context.step(token) or b""
                if answer or not self._context.complete:
                    return answer
            if not self._has_offered:
                self._has_offered = True
                return bytes(self._context.wrap(_NO_LAYER_OFFER, encrypt=False).message)
            choice = self._context.unwrap(token).message
            principal, target = str(self._context.initiator_name), str(self._context.target_name)
        except GSSError as error:
            raise AuthenticationError(f"a client's Kerberos login failed: {_reason(error)}") from error
        if target.partition("/")[0] != self._service:
            raise AuthenticationError(f"{principal} has a ticket for {target}, not for the service {self._service}")
        return self._finish(choice, principal)

    def _finish(self, choice: bytes, principal: str) -> bytes:
        authorization = choice[len(_NO_LAYER_OFFER) :].decode(errors="replace")
        if choice[:1] != _NO_LAYER_OFFER[:1]:
            raise AuthenticationError(f"{principal} asks for encryption by SASL, which is not supported: use TLS")
        if authorization not in {"", principal}:
            raise AuthenticationError(f"{principal} asks to act as {authorization[:64]!a}")
        if not self._is_allowed(principal):
            raise AuthenticationError(f"{principal} does not match saslJaasClientAllowedIds")
        self._identity = principal
        return b""


@dataclasses.dataclass(frozen=True)
class Keytab:
    """Where a bookie's keys are. ``principal`` None: any one in the keytab; ``path`` None: the system's keytab."""

    path: str | None
    principal: str | None

    def credentials(self) -> gssapi.Credentials:
        """The bookie's keys; ConfigurationError."""
        try:
            return gssapi.Credentials(
                name=None if self.principal is None else _principal(self.principal),
                usage="accept",
                mechs=[gssapi.MechType.kerberos],
                store=None if self.path is None else {"keytab": self.path},
            )
        except GSSError as error:
            place = self.path or "the system's keytab"
            raise ConfigurationError(
                f"{place} has no usable key of {self.principal or 'a bookie'}: {_reason(error)}; check klist -k"
            ) from error


def _client_store(login: KerberosLogin) -> dict[str, str] | None:
    """Where tickets come from. Those of a keytab are kept in memory, for all connections of this process."""
    if login.keytab is not None:
        return {"client_keytab": login.keytab, "ccache": f"MEMORY:{login.keytab},{login.principal}"}
    return None if login.cache is None else {"ccache": login.cache}


def _raise_at_once(context: gssapi.SecurityContext) -> None:
    """By default the error of a step is raised with the next step, which may never come."""
    context.__DEFER_STEP_ERRORS__ = False


def _principal(name: str) -> gssapi.Name:
    return gssapi.Name(name, gssapi.NameType.kerberos_principal)


def _check_size(token: bytes) -> None:
    if len(token) > _TOKEN_BYTES_MAX:
        raise AuthenticationError(f"a login token of {len(token)} bytes was received; the limit is {_TOKEN_BYTES_MAX}")


def _reason(error: GSSError) -> str:
    """The Kerberos library's own words, without the general ones of GSSAPI before them."""
    details = [each for each in error.get_all_statuses(error.min_code, is_maj=False) if each not in _NO_DETAILS]
    general = [each for each in error.get_all_statuses(error.maj_code, is_maj=True) if "Minor code" not in each]
    return "; ".join(details or general) or "the token is damaged"

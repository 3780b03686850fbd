"""The directory of ``bkctl tls init``: a certificate authority, and one directory for each bookie's host and client.

``ca/key.pem`` signs certificates and leaves this directory never; ``ca/ca.pem`` is what everybody trusts. Each of
``bookies/HOST`` and ``clients/NAME`` has key.pem, certificate.pem and a copy of ca.pem: what that machine needs.
"""

from __future__ import annotations

import datetime
import glob
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bkctl.commands.errors import InvalidArgumentError
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.new_file import write_whole
from bkctl.runtime.security.certificates import (
    Authority,
    CertificateRequest,
    alternative_names,
    certificate_pem,
    key_pem,
    new_authority,
    new_key,
    sign,
)
from bkctl.runtime.security.roles import first_role
from bkctl.storage.adapters.given_files import read_given_file

KEY: Final = "key.pem"
CERTIFICATE: Final = "certificate.pem"
CA: Final = "ca.pem"
AUTHORITY_DAYS: Final = 3650
_AUTHORITY_NAME: Final = "bkctl certificate authority"
_PRIVATE: Final = 0o700


class WantedCertificate(NamedTuple):
    """A certificate that is to be in ``directory``."""

    directory: str
    request: CertificateRequest


class MissingFiles(NamedTuple):
    """What a directory lacks."""

    wanted: WantedCertificate
    names: tuple[str, ...]


class AuthorityFiles:
    """The files below one directory."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self.key_path = os.path.join(self.directory, "ca", KEY)
        self.certificate_path = os.path.join(self.directory, "ca", CA)

    def missing_authority(self) -> bool:
        """Whether there is no authority yet; ConflictError if a file of the one that signed is missing."""
        paths = (self.key_path, self.certificate_path)
        lost = [path for path in paths if not os.path.lexists(path)]
        is_none = len(lost) == len(paths)
        below = (f"{glob.escape(self.directory)}/{kind}/*/*.pem" for kind in ("bookies", "clients"))
        signed = [path for pattern in below for path in glob.glob(pattern)] if is_none else []
        if (lost and not is_none) or signed:
            whose = f", whose CA signed what is in {os.path.dirname(min(signed))}" if signed else ""
            which = f"{' and '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing{whose}"
            it = "it" if len(lost) == 1 else "them"
            raise ConflictError(f"nothing was changed: {which}: restore {it}, or give another directory")
        return is_none

    def missing_of(self, wanted: WantedCertificate) -> MissingFiles:
        """Files to write; ConflictError if what is there is for another name, host or role, or has lost its key."""
        names = [name for name in (KEY, CERTIFICATE, CA) if not os.path.lexists(os.path.join(wanted.directory, name))]
        path = os.path.join(wanted.directory, CERTIFICATE)
        if CERTIFICATE not in names:
            if KEY in names:
                raise ConflictError(f"nothing was changed: {path} has lost its {KEY}: delete it to make both again")
            _require_same(path, read_certificate(path), wanted.request)
        return MissingFiles(wanted, tuple(names))

    def write(self, missing: Sequence[MissingFiles], now: datetime.datetime) -> None:
        """Write what is missing, keys first; OSError, ConflictError if a file has appeared meanwhile."""
        authority = self._authority(now)
        trusted = certificate_pem(authority.certificate)
        for each in missing:
            directory = each.wanted.directory
            _make_private(directory)
            key = new_key() if KEY in each.names else read_key(os.path.join(directory, KEY))
            contents = {KEY: key_pem(key), CA: trusted}
            if CERTIFICATE in each.names:
                contents[CERTIFICATE] = certificate_pem(sign(authority, each.wanted.request, key, now))
            for name in each.names:
                write_whole(os.path.join(directory, name), contents[name], is_new=True)

    def _authority(self, now: datetime.datetime) -> Authority:
        if not self.missing_authority():
            return Authority(read_certificate(self.certificate_path), read_key(self.key_path))
        _make_private(os.path.dirname(self.key_path))
        made = new_authority(_AUTHORITY_NAME, AUTHORITY_DAYS, now)
        write_whole(self.key_path, key_pem(made.key), is_new=True)
        write_whole(self.certificate_path, certificate_pem(made.certificate), is_new=True)
        return made


def read_certificate(path: str) -> x509.Certificate:
    """The first certificate of a PEM file; OSError, InvalidArgumentError."""
    try:
        return x509.load_pem_x509_certificate(read_given_file(path))
    except ValueError as error:
        raise InvalidArgumentError(f"{path} has no certificate in PEM form") from error


def read_key(path: str) -> ec.EllipticCurvePrivateKey:
    """The private key of a PEM file that ``tls init`` has written; OSError, InvalidArgumentError."""
    try:
        key = serialization.load_pem_private_key(read_given_file(path), None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{path} has no private key without a password in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgumentError(f"{path} is not a key of bkctl tls init, which are elliptic")
    return key


def _require_same(path: str, found: x509.Certificate, request: CertificateRequest) -> None:
    """Expiry is no difference: ``tls check`` reports it, and a deleted certificate is made again."""
    role = first_role(found.public_bytes(serialization.Encoding.DER))
    differences = []
    if role != request.role:
        differences.append(f"role {role or 'none'}, not {request.role or 'none'}")
    if request.hosts and request.name not in alternative_names(found):  # its addresses may have changed
        differences.append(f"no name {request.name}")
    if differences:
        raise ConflictError(
            f"nothing was changed: {path} has {' and '.join(differences)}: delete it to sign another one for its key"
        )


def _make_private(directory: str) -> None:
    for path in reversed([directory, *_parents(directory)]):
        if not os.path.isdir(path):
            os.mkdir(path, _PRIVATE)


def _parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) not in {path, ""}:
        yield parent
        path = parent

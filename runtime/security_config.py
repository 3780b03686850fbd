"""Settings of TLS and logins, for both sides of a connection to a bookie. Source: wire section 12."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal

import msgspec

from bkctl.storage.setting import Java, Setting

# fmt: off
# A setting takes at most three lines here; the formatter would use nine.


SHOW_CERTIFICATE: Final = "tlsClientAuthentication=true"
"""Without it a Java client shows no certificate, also if its file names one."""


TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
"""The TLS versions that OpenSSL still has."""


class StoreType(enum.StrEnum):
    """Format of a file with keys or certificates. JKS is refused with the command that converts it."""

    PEM = "PEM"
    PKCS12 = "PKCS12"


class LoginMechanism(enum.StrEnum):
    """SASL mechanism of a login at a bookie."""

    DIGEST_MD5 = "DIGEST-MD5"
    GSSAPI = "GSSAPI"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one side of a TLS connection. Secrets are references (``runtime/security/secrets.py``)."""

    ca_file: Annotated[str | None, Setting(
        "File with the CA certificates that sign the other side's certificate")] = None
    ca_type: Annotated[StoreType, Setting("Format of ca_file")] = StoreType.PEM
    ca_password: Annotated[str | None, Setting("Location of the password of ca_file, if it is PKCS12: file:PATH, "
        "env:VARIABLE or fd:NUMBER", is_secret=True)] = None
    certificate_file: Annotated[str | None, Setting("PEM file of this side's certificate and its chain")] = None
    key_file: Annotated[str | None, Setting(
        "PEM file of the private key, or PKCS12 file of key and certificate")] = None
    key_type: Annotated[StoreType, Setting("Format of key_file")] = StoreType.PEM
    key_password: Annotated[str | None, Setting("Location of the password of key_file: file:PATH, env:VARIABLE "
        "or fd:NUMBER", is_secret=True)] = None
    protocols: Annotated[tuple[str, ...], Setting("Allowed TLS versions", unset="TLSv1.2 and TLSv1.3")] = ()
    ciphers: Annotated[tuple[str, ...], Setting("Allowed cipher suites of TLS 1.2, in OpenSSL's names",
        unset="OpenSSL's default")] = ()
    ca_java_key: str | None = None
    """The key of a Java file that gives ca_file, or would if it were there, such as tlsTrustStore; no setting."""
    certificate_java_key: str | None = None
    """The same of certificate_file."""
    key_java_key: str | None = None
    """The same of key_file."""
    ciphers_java_key: str | None = None
    """The place of a Java file that gives ciphers: its line and key; no setting."""
    variables_note: str = ""
    """Which variables give some of this, and what does not count because of them: for errors; no setting."""

    @property
    def has_files(self) -> bool:
        """Whether any file is named; else a table has only what the files are for."""
        return any((self.ca_file, self.certificate_file, self.key_file))

    def name_of(self, file: Literal["ca", "certificate", "key"], table: str = "") -> str:
        """The setting of a file as its source names it; ``table``: that of bkctl's settings, with a dot."""
        java_key: str | None = getattr(self, f"{file}_java_key")
        return java_key or f"{table}{file}_file"


class ClientTlsConfig(TlsFiles, frozen=True, kw_only=True):
    """TLS of the connections to bookies."""

    is_hostname_checked: Annotated[bool, Setting("Require that a bookie's certificate matches its host")] = True


class ClientLogin(msgspec.Struct, frozen=True, kw_only=True):
    """A login with SASL: a user, a Kerberos ticket, or what a JAAS file has."""

    mechanism: Annotated[LoginMechanism, Setting(
        "SASL mechanism; GSSAPI needs the gssapi package, and a cached ticket or a keytab")] = LoginMechanism.DIGEST_MD5
    username: Annotated[str | None, Setting("User name for DIGEST-MD5")] = None
    password: Annotated[str | None, Setting("Location of the password: file:PATH, env:VARIABLE or fd:NUMBER",
        is_secret=True)] = None
    service: Annotated[str, Setting("First part of the servers' principal, for GSSAPI")]
    principal: Annotated[str | None, Setting("Principal of this client, for GSSAPI", unset="that of the ticket")] = None
    keytab: Annotated[str | None, Setting("Keytab of this client, for GSSAPI", unset="the ticket of kinit")] = None
    jaas_file: Annotated[str | None, Setting(
        "JAAS file with the login; then mechanism, user, password, principal and keytab come from it")] = None
    jaas_section: Annotated[str, Setting("Section of the JAAS file")]
    variables_note: str = ""
    """Which variables give some of this, and what does not count because of them: for errors; no setting."""


class ClientLoginConfig(ClientLogin, frozen=True, kw_only=True):
    """Login at bookies: the table ``[bookie_client.sasl]`` (in Java SASLClientProviderFactory)."""

    service: Annotated[str, Setting("First part of the bookies' principal, for GSSAPI")] = "bookkeeper"
    jaas_section: Annotated[str, Setting("Section of the JAAS file")] = "BookKeeper"
    jaas_daemon_section: Annotated[str, Setting("Section of the JAAS file for the autorecovery daemon")] = "Auditor"


class BookieClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How connections to bookies are protected: the table ``[bookie_client]``. Without it: clear text, no login."""

    tls: ClientTlsConfig | None = None
    sasl: ClientLoginConfig | None = None
    tls_java_key: str | None = None
    """The key that would switch TLS on in the Java file that settings come from; no setting."""
    sasl_java_key: str | None = None
    """The same of a login."""

    def name_of(self, table: Literal["tls", "sasl"]) -> str:
        """What switches TLS or a login on, as the source of the settings names it."""
        java_key: str | None = getattr(self, f"{table}_java_key")
        return java_key or f"bookie_client.{table}"


class BookieTlsConfig(TlsFiles, frozen=True, kw_only=True):
    """TLS on the bookie's port: the table ``[bookie.tls]``."""

    is_client_certificate_required: Annotated[bool, Setting(
        "Accept only clients with a certificate that ca_file signs")] = False
    is_required: Annotated[bool, Setting(
        "Answer clients without TLS with EUA; if false, they are served, as in Java")] = False
    authorized_roles: Annotated[tuple[str, ...], Setting(
        "Roles (first one in the OU of a client's certificate) that may use the bookie", unset="all")] = ()


class AdminTlsConfig(TlsFiles, frozen=True, kw_only=True):
    """HTTPS of an admin port: files of its own, and the roles of clients that need no token.

    Without files, those of ``[bookie.tls]``. Java's keys name stores, which must be PKCS12 here.
    """

    ca_file: Annotated[str | None, Setting(
        "File with the CA certificates that sign those of clients; without it clients need the token",
        java=Java("httpServerTrustStorePath"))] = None
    ca_password: Annotated[str | None, Setting("Location of the password of ca_file, if it is PKCS12: file:PATH, "
        "env:VARIABLE or fd:NUMBER", is_secret=True, java=Java("httpServerTrustStorePassword"))] = None
    key_file: Annotated[str | None, Setting("PEM file of the private key, or PKCS12 file of key and certificate",
        java=Java("httpServerKeyStorePath"))] = None
    key_password: Annotated[str | None, Setting("Location of the password of key_file: file:PATH, env:VARIABLE "
        "or fd:NUMBER", is_secret=True, java=Java("httpServerKeyStorePassword"))] = None
    authorized_roles: Annotated[tuple[str, ...], Setting(
        "Roles (first one in the OU of a client's certificate) that may change something without the token",
        java=Java("adminAuthorizedRoles"), unset="those of [bookie.tls] if its files are used, else none")] = ()


class BookieLoginConfig(msgspec.Struct, frozen=True, kw_only=True):
    """SASL on the bookie's port: the table ``[bookie.sasl]`` (in Java SASLBookieAuthProviderFactory)."""

    jaas_file: Annotated[str | None, Setting("JAAS file with the users (user_NAME options) or the keytab")] = None
    jaas_section: Annotated[str, Setting("Section of the JAAS file")] = "Bookie"
    allowed_ids: Annotated[str, Setting(
        "Regular expression that the whole id of a client must match")] = ".*bookkeeper.*"
    service: Annotated[str, Setting("First part of this bookie's principal, for GSSAPI")] = "bookkeeper"
    allowed_ids_java_key: str | None = None
    """The place of a Java file that gives allowed_ids; no setting."""
    variables_note: str = ""
    """As of ``ClientLogin``."""


def keytool_command(source: str, target: str) -> str:
    """The command that makes a PKCS12 file of a JKS file, which only Java reads."""
    return f"keytool -importkeystore -srckeystore {source} -destkeystore {target} -deststoretype PKCS12"

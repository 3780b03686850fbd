"""Java's keys for TLS and logins, and what each of them sets here. Source: wire section 12."""

from __future__ import annotations

from typing import Final

_BOTH_SIDES: Final = "[bookie.tls] and [bookie_client.tls]"


def _store(keys: str, file: str, tables: str, note: str = "") -> dict[str, str]:
    """The keys of a store: its path, its type and the path of its password."""
    return {
        keys: f"{file}_file in {tables}{note}",
        f"{keys}Type": f"{file}_type in {tables}: PEM or PKCS12. Java's default is JKS, which bkctl does not read",
        f"{keys}PasswordPath": f"{file}_password in {tables}, as file:PATH",
    }


SECURITY_KEYS: Final = {
    "tlsProviderFactoryClass": f"switches TLS on, by {_BOTH_SIDES}; without it no other key of TLS has an effect",
    "tlsClientAuthentication": "is_client_certificate_required in [bookie.tls]; clients show their certificate",
    "tlsHostnameVerificationEnabled": "is_hostname_checked in [bookie_client.tls]; false if the file asks for TLS "
    "without this key, as in Java",
    "tlsEnabledProtocols": f"protocols in {_BOTH_SIDES}; versions before TLSv1.2 are left out, and refused "
    "if there is no other",
    "tlsEnabledCipherSuites": f"ciphers in {_BOTH_SIDES}, by Java's or OpenSSL's names",
    "tlsCertificatePath": f"certificate_file in {_BOTH_SIDES}, if the key is a PEM file",
    **_store("tlsKeyStore", "key", _BOTH_SIDES),
    **_store("tlsTrustStore", "ca", _BOTH_SIDES),
    **_store("clientKeyStore", "key", "[bookie_client.tls]", ", before tlsKeyStore"),
    **_store("clientTrustStore", "ca", "[bookie_client.tls]", ", before tlsTrustStore"),
    "bookieAuthProviderFactoryClass": "SASLBookieAuthProviderFactory: [bookie.sasl]; BookieAuthZFactory: "
    "authorized_roles in [bookie.tls]; any other class is refused",
    "authorizedRoles": "authorized_roles in [bookie.tls], with BookieAuthZFactory",
    "clientAuthProviderFactoryClass": "SASLClientProviderFactory: [bookie_client.sasl]; any other class is refused",
    "saslJaasBookieSectionName": "jaas_section in [bookie.sasl]",
    "saslJaasClientSectionName": "jaas_section in [bookie_client.sasl]",
    "saslJaasAuditorSectionName": "jaas_daemon_section in [bookie_client.sasl]",
    "saslJaasClientAllowedIds": "allowed_ids in [bookie.sasl]",
    "bookkeeper.sasl.servicename": "service in [bookie.sasl] and [bookie_client.sasl]",
}
"""What a key sets."""

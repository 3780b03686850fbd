"""TLS, logins (SASL) and roles of certificates, for connections to and from bookies. No sockets in here.

In: settings of one side (``runtime/security_config.py``), the files that they name, tokens of the other side. Out: TLS
contexts that follow their files, and exchanges of tokens that end with an identity or an AuthenticationError.
Source: wire section 12.
"""

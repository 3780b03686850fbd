"""Where every copy of every ledger should be, and how it gets there.

Packages, from the rules up: ``judge`` decides, ``copy`` moves bytes, ``survey`` reads what the rules need, ``plan``
says what a run will do, ``turn`` changes one ledger, ``close`` closes one for an operator, ``run`` goes through many.
``cluster_audit`` counts. docs/architecture.md has a picture.
"""

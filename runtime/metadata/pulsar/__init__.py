"""Pulsar's nodes that name ledgers. bkctl reads them, for ``bkctl audit orphans``, and never writes them.

All paths are below the ZooKeeper chroot of the brokers. ``pulsar_nodes.proto`` has the fields of the messages, binary
protobuf. The ledger id -1 is no ledger.

Owners. All ledgers of Pulsar since 2019 have ``application`` = ``pulsar`` in their custom metadata. Exactly one of
these keys names the owner:

- data: ``pulsar/managed-ledger`` = ``<tenant>/<namespace>/persistent/<encoded topic>``
- cursor: the same, and ``pulsar/cursor`` = ``<name>``
- compacted topic: ``pulsar/compactedTopic`` = ``persistent://<tenant>/<namespace>/<topic>``
- schema: ``pulsar/schemaId`` = ``<tenant>/<namespace>/<encoded topic>``
- bucket of delayed messages: ``pulsar/delayedIndexTopic`` = ``persistent://<tenant>/<namespace>/<topic>``, since 2023

The older form of a namespace is ``<tenant>/<cluster>/<namespace>``. Encoded names are URL-encoded; bkctl compares
decoded ones.

Nodes:

- ``/managed-ledgers/<namespace>/persistent/<topic>``: a topic message, or empty (no ledger); names data ledgers
- a child of it, named like the cursor: a cursor message; names the cursor's ledger, buckets, the compacted ledger
- ``/schemas/<namespace>/<topic>``: a schema message; names one ledger per version
- ``/admin/policies/<namespace>``: not read; shows that the namespace exists

The compacted ledger is the number of the label ``CompactedTopicLedger`` of the cursor ``__compaction``. It is in the
cursor's node or, if the cursor has a ledger, in the last entry of that. While a broker has the topic open, the last
entry is not confirmed yet. A bucket is the text, a decimal id, of a label that begins with
``#pulsar.internal.delayed.bucket``. If a schema's node does not begin with version 0, older versions are named in the
entries of its ledgers only.

Nodes of topics and cursors may be compressed: the bytes ``47 78``, a 4-byte big-endian length, a header of that length
(1 codec, 2 uncompressed bytes), the compressed message. Codecs: 0 none, 1 LZ4 (a raw block), 2 zlib, 3 Zstandard, 4
Snappy (raw).

Order of changes. A new topic: its node, then the ledger, then the reference to it. Trimming, and a new ledger of a
cursor: the reference is removed first, then the ledger is deleted, in at most three tries. Deletion of a topic:
cursors, ledgers, then the node; of a schema: ledgers, then the node. Offload: some hours after the copy is complete the
ledger is noted as deleted, then deleted. A broker that ends between two of these steps leaves a ledger that no node
names.
"""

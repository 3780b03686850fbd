from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CompressionRecord(_message.Message):
    __slots__ = ("codec", "uncompressedBytes")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSEDBYTES_FIELD_NUMBER: _ClassVar[int]
    codec: int
    uncompressedBytes: int
    def __init__(self, codec: _Optional[int] = ..., uncompressedBytes: _Optional[int] = ...) -> None: ...

class TopicRecord(_message.Message):
    __slots__ = ("ledgers", "terminatedAt", "labels")
    class Offload(_message.Message):
        __slots__ = ("idHigh", "idLow", "isComplete", "isDeletedFromBookies", "offloadedAt", "driver", "segments")
        IDHIGH_FIELD_NUMBER: _ClassVar[int]
        IDLOW_FIELD_NUMBER: _ClassVar[int]
        ISCOMPLETE_FIELD_NUMBER: _ClassVar[int]
        ISDELETEDFROMBOOKIES_FIELD_NUMBER: _ClassVar[int]
        OFFLOADEDAT_FIELD_NUMBER: _ClassVar[int]
        DRIVER_FIELD_NUMBER: _ClassVar[int]
        SEGMENTS_FIELD_NUMBER: _ClassVar[int]
        idHigh: int
        idLow: int
        isComplete: bool
        isDeletedFromBookies: bool
        offloadedAt: int
        driver: bytes
        segments: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, idHigh: _Optional[int] = ..., idLow: _Optional[int] = ..., isComplete: _Optional[bool] = ..., isDeletedFromBookies: _Optional[bool] = ..., offloadedAt: _Optional[int] = ..., driver: _Optional[bytes] = ..., segments: _Optional[_Iterable[bytes]] = ...) -> None: ...
    class DataLedger(_message.Message):
        __slots__ = ("ledgerId", "entryCount", "byteCount", "closedAt", "offload", "labels")
        LEDGERID_FIELD_NUMBER: _ClassVar[int]
        ENTRYCOUNT_FIELD_NUMBER: _ClassVar[int]
        BYTECOUNT_FIELD_NUMBER: _ClassVar[int]
        CLOSEDAT_FIELD_NUMBER: _ClassVar[int]
        OFFLOAD_FIELD_NUMBER: _ClassVar[int]
        LABELS_FIELD_NUMBER: _ClassVar[int]
        ledgerId: int
        entryCount: int
        byteCount: int
        closedAt: int
        offload: TopicRecord.Offload
        labels: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, ledgerId: _Optional[int] = ..., entryCount: _Optional[int] = ..., byteCount: _Optional[int] = ..., closedAt: _Optional[int] = ..., offload: _Optional[_Union[TopicRecord.Offload, _Mapping]] = ..., labels: _Optional[_Iterable[bytes]] = ...) -> None: ...
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    TERMINATEDAT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[TopicRecord.DataLedger]
    terminatedAt: bytes
    labels: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ledgers: _Optional[_Iterable[_Union[TopicRecord.DataLedger, _Mapping]]] = ..., terminatedAt: _Optional[bytes] = ..., labels: _Optional[_Iterable[bytes]] = ...) -> None: ...

class NumberLabel(_message.Message):
    __slots__ = ("name", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    number: int
    def __init__(self, name: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class TextLabel(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    text: bytes
    def __init__(self, name: _Optional[bytes] = ..., text: _Optional[bytes] = ...) -> None: ...

class CursorRecord(_message.Message):
    __slots__ = ("cursorLedgerId", "readLedgerId", "readEntryId", "deletedRanges", "numberLabels", "lastActive", "deletedInBatches", "textLabels")
    CURSORLEDGERID_FIELD_NUMBER: _ClassVar[int]
    READLEDGERID_FIELD_NUMBER: _ClassVar[int]
    READENTRYID_FIELD_NUMBER: _ClassVar[int]
    DELETEDRANGES_FIELD_NUMBER: _ClassVar[int]
    NUMBERLABELS_FIELD_NUMBER: _ClassVar[int]
    LASTACTIVE_FIELD_NUMBER: _ClassVar[int]
    DELETEDINBATCHES_FIELD_NUMBER: _ClassVar[int]
    TEXTLABELS_FIELD_NUMBER: _ClassVar[int]
    cursorLedgerId: int
    readLedgerId: int
    readEntryId: int
    deletedRanges: _containers.RepeatedScalarFieldContainer[bytes]
    numberLabels: _containers.RepeatedCompositeFieldContainer[NumberLabel]
    lastActive: int
    deletedInBatches: _containers.RepeatedScalarFieldContainer[bytes]
    textLabels: _containers.RepeatedCompositeFieldContainer[TextLabel]
    def __init__(self, cursorLedgerId: _Optional[int] = ..., readLedgerId: _Optional[int] = ..., readEntryId: _Optional[int] = ..., deletedRanges: _Optional[_Iterable[bytes]] = ..., numberLabels: _Optional[_Iterable[_Union[NumberLabel, _Mapping]]] = ..., lastActive: _Optional[int] = ..., deletedInBatches: _Optional[_Iterable[bytes]] = ..., textLabels: _Optional[_Iterable[_Union[TextLabel, _Mapping]]] = ...) -> None: ...

class CursorEntryRecord(_message.Message):
    __slots__ = ("readLedgerId", "readEntryId", "deletedRanges", "numberLabels", "deletedInBatches", "deletedRangeMaps")
    READLEDGERID_FIELD_NUMBER: _ClassVar[int]
    READENTRYID_FIELD_NUMBER: _ClassVar[int]
    DELETEDRANGES_FIELD_NUMBER: _ClassVar[int]
    NUMBERLABELS_FIELD_NUMBER: _ClassVar[int]
    DELETEDINBATCHES_FIELD_NUMBER: _ClassVar[int]
    DELETEDRANGEMAPS_FIELD_NUMBER: _ClassVar[int]
    readLedgerId: int
    readEntryId: int
    deletedRanges: _containers.RepeatedScalarFieldContainer[bytes]
    numberLabels: _containers.RepeatedCompositeFieldContainer[NumberLabel]
    deletedInBatches: _containers.RepeatedScalarFieldContainer[bytes]
    deletedRangeMaps: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, readLedgerId: _Optional[int] = ..., readEntryId: _Optional[int] = ..., deletedRanges: _Optional[_Iterable[bytes]] = ..., numberLabels: _Optional[_Iterable[_Union[NumberLabel, _Mapping]]] = ..., deletedInBatches: _Optional[_Iterable[bytes]] = ..., deletedRangeMaps: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SchemaRecord(_message.Message):
    __slots__ = ("newest", "versions")
    class Position(_message.Message):
        __slots__ = ("ledgerId", "entryId")
        LEDGERID_FIELD_NUMBER: _ClassVar[int]
        ENTRYID_FIELD_NUMBER: _ClassVar[int]
        ledgerId: int
        entryId: int
        def __init__(self, ledgerId: _Optional[int] = ..., entryId: _Optional[int] = ...) -> None: ...
    class Version(_message.Message):
        __slots__ = ("number", "position", "hash")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        HASH_FIELD_NUMBER: _ClassVar[int]
        number: int
        position: SchemaRecord.Position
        hash: bytes
        def __init__(self, number: _Optional[int] = ..., position: _Optional[_Union[SchemaRecord.Position, _Mapping]] = ..., hash: _Optional[bytes] = ...) -> None: ...
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    newest: SchemaRecord.Version
    versions: _containers.RepeatedCompositeFieldContainer[SchemaRecord.Version]
    def __init__(self, newest: _Optional[_Union[SchemaRecord.Version, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[SchemaRecord.Version, _Mapping]]] = ...) -> None: ...

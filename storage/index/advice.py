"""What to do about an index that is lost or damaged: which command makes one depends on whose folders these are."""

from __future__ import annotations

from storage.advice import JAVA_INDEX_ADVICE, REBUILD_ADVICE
from storage.config import StorageConfig
from storage.filenames import current_directory
from storage.index.adoption_note import find_change_under_way
from storage.index.java_index import find_java_index
from storage.ports import FileSystem


def advise_on_lost_index(fs: FileSystem, config: StorageConfig) -> str:
    """The end of a sentence. OSError.

    Beside an index of Java ours must not be made from logs: it would lack what only that one says, and after a
    hand-back Java's tools are to go on.
    """
    change = find_change_under_way(fs, config)
    if change is not None:
        return change.advice
    folders = map(current_directory, config.paired_index_directories)
    is_java = any(find_java_index(fs, folder).names for folder in folders if fs.exists(folder))
    return JAVA_INDEX_ADVICE if is_java else REBUILD_ADVICE

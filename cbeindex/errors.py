"""Exceptions of index files. Errors of the file system, such as a missing file or a full disk, are OSError."""


class IndexFileError(Exception):
    """Base class: an index file cannot be read or written."""


class NotAnIndexFileError(IndexFileError):
    """The file is not an index file: it does not begin with the magic bytes."""


class UnsupportedVersionError(IndexFileError):
    """The index file has a format version that this release cannot read."""


class CorruptIndexFileError(IndexFileError):
    """The index file is truncated, or a size, a value or a checksum in it is wrong."""


class WriterConflictError(IndexFileError):
    """Another process is writing the file, or has changed it since it was loaded."""

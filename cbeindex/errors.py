"""What can be wrong with an index file; errors of the disk (a missing file, no room left) stay OSError."""


class IndexFileError(Exception):
    """An index file cannot be read or written."""


class NotAnIndexFileError(IndexFileError):
    """Some other file: the magic at its beginning is missing."""


class UnsupportedVersionError(IndexFileError):
    """An index file of a version that this release cannot read."""


class CorruptIndexFileError(IndexFileError):
    """An index file that is truncated, or in which a size or a checksum disagrees."""


class WriterConflictError(IndexFileError):
    """Another writer is at work on the file, or has changed it since it was loaded."""

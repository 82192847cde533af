"""Bytes of files of vectors in the formats that the library reads."""

import io
import struct
import zipfile

import numpy as np


def vecs(rows):
    """Bytes of an .fvecs, .ivecs or .bvecs file."""
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in rows)


def binary(rows):
    """Bytes of an .fbin, .ibin, .u8bin or .i8bin file."""
    return struct.pack("<II", *rows.shape) + rows.tobytes()


def npy(array, version=None):
    """Bytes of a .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array), version)
    return stream.getvalue()


def npz(compressed=False, **arrays):
    """Bytes of an .npz file; values of type bytes are stored unchanged."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for key, array in arrays.items():
            archive.writestr(f"{key}.npy", array if isinstance(array, bytes) else npy(array))
    return stream.getvalue()

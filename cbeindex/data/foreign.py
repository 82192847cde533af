"""Arrays of other libraries as numpy arrays and scipy.sparse arrays.

Nothing is imported here: an array of a library exists only if the caller has imported the library. Data are not copied
where numpy can share them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rowerror import RowError


def as_native(array: Any, name: str) -> Any:
    """Return vectors of other libraries as a numpy array or a scipy.sparse array, and other objects as they are.

    Parameters
    ----------
    array : object
        An Arrow array (lists of fixed or equal length, tensors of fixed shape, chunked or not) or table; a pandas or
        polars column of vectors, or a frame of numbers; a torch tensor of any dtype, layout and device; an array that
        has DLPack; an array of objects that are vectors, or a list of such.
    name : str
        Name of the argument in error messages.
    """
    if type(array) is np.ndarray and array.dtype.kind in "fiub":
        return array
    if isinstance(array, (list, tuple)):
        return _of_list(array, name)
    for library, convert in _LIBRARIES.items():
        module = sys.modules.get(library)
        native = None if module is None else convert(module, array, name)
        if native is not None:
            array = native
            break
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        array = _of_dlpack(array, name)
    if hasattr(array, "__array__") and not hasattr(array, "tocsr"):
        return _of_numpy(np.asanyarray(array), name)
    return array


def _of_numpy(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of numbers: vectors in an array of objects, and types that numpy itself does not have."""
    if array.dtype.kind == "O" and array.size == 0:
        return array.astype(np.float32)
    if array.dtype.kind == "O" and array.ndim == 1 and np.ndim(array[0]) == 1:
        return stacked([np.asarray(row) for row in array], name)
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.name.startswith(("bfloat", "float")):
        return array.astype(np.float32)  # bfloat16 and the like, which JAX and TensorFlow use
    return array


def _of_list(rows: Sequence[Any], name: str) -> Any:
    """Return a list as it is, unless numpy cannot read its first element."""
    first = rows[0] if rows else None
    if first is None or isinstance(first, (int, float, list, tuple, np.ndarray, np.generic)):
        return rows
    native = as_native(first, name)
    return rows if native is first else stacked([as_native(row, name) for row in rows], name)


def stacked(rows: Sequence[Any], name: str) -> NDArray[Any]:
    """Stack vectors of equal length. Raises RowError for a vector of another length, or one that is missing."""
    length = np.size(rows[0])
    for number, row in enumerate(rows):
        if np.ndim(row) != 1:
            raise RowError(name, f"must be vectors of length {length}, as row 0 is", number, "is not")
        if len(row) != length:
            raise _ragged(name, length, number, len(row))
    return np.stack(rows)


def _ragged(name: str, length: int, row: int, other: int) -> RowError:
    return RowError(name, f"must be vectors of length {length}, as row 0 is", row, f"has length {other}")


def _refuse_missing(is_missing: Any, name: str) -> None:
    """Raise RowError if a row is marked as missing."""
    marks = np.asarray(is_missing)
    if marks.any():
        row = int(marks.argmax())
        raise RowError(name, "must not have missing values; drop or fill such rows first", row, "has one")


def _refuse_others(columns: Sequence[tuple[Any, bool]], name: str) -> None:
    """Raise TypeError if some columns of a frame are not numbers; a column is its name and whether it is numbers."""
    others = [str(column) for column, is_number in columns if not is_number]
    if others:
        shown = ", ".join(map(repr, others[:5])) + (", ..." if len(others) > 5 else "")
        what = f"a table of {len(columns)} columns where {shown} {'is' if len(others) == 1 else 'are'} not"
        raise TypeError(
            f"{name} must hold real numbers, got {what}: pass the column of vectors alone, as table[column]"
        )


# --- Arrow ---


def _of_arrow(pyarrow: Any, array: Any, name: str) -> Any:
    """Return an Arrow array, chunked array, table or record batch."""
    if isinstance(array, (pyarrow.Table, pyarrow.RecordBatch)):
        if array.num_columns == 1:
            return _of_arrow(pyarrow, array.column(0), name)
        _refuse_others([(field.name, _is_number(pyarrow, field.type)) for field in array.schema], name)
        columns = [_of_arrow(pyarrow, array.column(i), name) for i in range(array.num_columns)]
        return np.column_stack(columns) if columns else None
    if isinstance(array, pyarrow.ChunkedArray):
        parts, n_before = [], 0
        for chunk in array.chunks:
            try:
                parts.append(_of_arrow(pyarrow, chunk, name))
            except RowError as error:
                raise error.relocated(name, n_before + error.row) from None
            n_before += len(chunk)
        if not parts:
            return _of_arrow(pyarrow, pyarrow.array([], type=array.type), name)
        for part, chunk in zip(parts, array.chunks, strict=True):
            if part.shape[1:] != parts[0].shape[1:] and len(chunk):
                raise ValueError(f"{name} must be vectors of one length, got {parts[0].shape[1]} and {part.shape[1]}")
        return parts[0] if len(parts) == 1 else np.concatenate([part for part in parts if len(part)] or parts[:1])
    if not isinstance(array, pyarrow.Array):
        return None
    if isinstance(array, pyarrow.ExtensionArray):  # tensors of fixed shape, with their axes in the order of storage
        return _of_arrow(pyarrow, array.storage, name)
    if array.null_count:
        _refuse_missing(array.is_null().to_numpy(zero_copy_only=False), name)
    kinds = pyarrow.types
    if kinds.is_fixed_size_list(array.type):
        return _arrow_values(pyarrow, array.flatten(), array.type.list_size, name).reshape(-1, array.type.list_size)
    if kinds.is_list(array.type) or kinds.is_large_list(array.type):
        lengths = np.diff(array.offsets.to_numpy())
        length = int(lengths[0]) if len(lengths) else 0
        if (lengths != length).any():
            row = int((lengths != length).argmax())
            raise _ragged(name, length, row, int(lengths[row]))
        return _arrow_values(pyarrow, array.flatten(), length, name).reshape(len(array), length)
    if _is_number(pyarrow, array.type):
        return array.to_numpy(zero_copy_only=False)
    raise TypeError(
        f"{name} must be Arrow lists of numbers, got {array.type}; cast the column to fixed-size lists first"
    )


def _is_number(pyarrow: Any, type_: Any) -> bool:
    kinds = pyarrow.types
    return bool(kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_))


def _arrow_values(pyarrow: Any, values: Any, length: int, name: str) -> NDArray[Any]:
    """Return the numbers of all lists of an array."""
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        _refuse_missing(missing.reshape(-1, length).any(axis=1), name)
    native = _of_arrow(pyarrow, values, name)
    if native is None or native.ndim != 1:
        raise TypeError(f"{name} must be Arrow lists of numbers, got lists of {values.type}")
    found: NDArray[Any] = native
    return found


# --- data frames ---


def _of_pandas(pandas: Any, array: Any, name: str) -> Any:
    """Return a column of vectors, or a frame of numbers or with one column of vectors."""
    if isinstance(array, pandas.DataFrame):
        if array.shape[1] == 1 and len(array) and not pandas.api.types.is_numeric_dtype(array.dtypes.iloc[0]):
            return _of_pandas(pandas, array.iloc[:, 0], name)
        if array.shape[1] and all(isinstance(dtype, pandas.SparseDtype) for dtype in array.dtypes):
            return array.sparse.to_coo().tocsr()
        is_number = pandas.api.types.is_numeric_dtype
        _refuse_others([(column, is_number(dtype)) for column, dtype in array.dtypes.items()], name)
        is_foreign = any(isinstance(dtype, pandas.api.extensions.ExtensionDtype) for dtype in array.dtypes)
        if is_foreign:
            _refuse_missing(array.isna().any(axis=1), name)
        if not is_foreign:
            return array.to_numpy()
        return np.column_stack([_of_pandas(pandas, array.iloc[:, i], name) for i in range(array.shape[1])])
    if not isinstance(array, (pandas.Series, pandas.Index)):
        return None
    if array.dtype != np.float64 and array.dtype != np.float32:  # those may have NaN, which is refused later as such
        _refuse_missing(array.isna(), name)
    if isinstance(array.dtype, pandas.ArrowDtype):
        return _of_arrow(sys.modules["pyarrow"], array.array.__arrow_array__(), name)
    if isinstance(array.dtype, pandas.api.extensions.ExtensionDtype) and hasattr(array.dtype, "numpy_dtype"):
        return array.to_numpy(dtype=array.dtype.numpy_dtype)
    return array.to_numpy()


def _of_polars(polars: Any, array: Any, name: str) -> Any:
    """Return a column of vectors, or a frame of numbers or with one column of vectors."""
    if isinstance(array, polars.DataFrame):
        if array.width == 1:
            return _of_polars(polars, array.to_series(), name)
        types = array.schema.items()
        _refuse_others([(column, type_.is_numeric() or type_ == polars.Boolean) for column, type_ in types], name)
        for column in array:
            _refuse_missing(column.is_null().to_numpy(), name)
        return array.to_numpy()
    if isinstance(array, polars.LazyFrame):
        raise TypeError(f"{name} must be a polars.DataFrame, got a LazyFrame; call collect() first")
    if not isinstance(array, polars.Series):
        return None
    _refuse_missing(array.is_null().to_numpy(), name)
    if isinstance(array.dtype, polars.List):
        lengths = array.list.len().to_numpy()
        length = int(lengths[0]) if len(lengths) else 0
        if (lengths != length).any():
            row = int((lengths != length).argmax())
            raise _ragged(name, length, row, int(lengths[row]))
        array = array.list.to_array(length) if length else array
    if isinstance(array.dtype, polars.Array):
        length = array.dtype.shape[0]
        inner = array.explode().is_null().to_numpy().reshape(-1, length)
        _refuse_missing(inner.any(axis=1), name)
    return array.to_numpy()


# --- tensors ---


def _of_torch(torch: Any, array: Any, name: str) -> Any:
    """Return a tensor of any dtype, layout and device."""
    if not isinstance(array, torch.Tensor):
        return None
    if array.layout != torch.strided:
        return _of_sparse_tensor(torch, array, name)
    tensor = array.detach().resolve_conj().resolve_neg().cpu()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()  # numpy has neither bfloat16 nor the types of 8 bits
    return tensor.numpy()


def _of_sparse_tensor(torch: Any, array: Any, name: str) -> Any:
    """Return a tensor with one of the sparse layouts as a scipy.sparse array."""
    from scipy import sparse

    tensor = array.detach()
    if tensor.ndim != 2:
        raise ValueError(f"{name} must have shape (n, dim), got a sparse tensor of shape {tuple(tensor.shape)}")
    if tensor.layout == torch.sparse_csr:
        parts = (tensor.values(), tensor.col_indices(), tensor.crow_indices())
        return sparse.csr_array(tuple(_of_torch(torch, part, name) for part in parts), shape=tuple(tensor.shape))
    if tensor.layout != torch.sparse_coo:
        tensor = tensor.to_sparse_coo()
    tensor = tensor.coalesce()
    values, places = _of_torch(torch, tensor.values(), name), _of_torch(torch, tensor.indices(), name)
    return sparse.coo_array((values, (places[0], places[1])), shape=tuple(tensor.shape)).tocsr()


def _of_cupy(cupy: Any, array: Any, name: str) -> Any:
    """Return an array of a GPU."""
    return array.get() if isinstance(array, cupy.ndarray) else None


def _of_dlpack(array: Any, name: str) -> NDArray[Any]:
    """Return an array that has DLPack and not numpy's interface."""
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        raise TypeError(f"{name} must be readable by numpy, got {kind}: {error}; copy it to the CPU first") from error


_LIBRARIES: dict[str, Callable[[Any, Any, str], Any]] = {
    "pyarrow": _of_arrow,
    "pandas": _of_pandas,
    "polars": _of_polars,
    "torch": _of_torch,
    "cupy": _of_cupy,
}

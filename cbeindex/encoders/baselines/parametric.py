"""Encoders that are described by named values and arrays, and rebuilt from them only where all of them fit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..._core.checks import MOST_BITS, MOST_DIM, as_array, as_choice, as_count, as_flag
from ..._core.typing import Arrays, Projections, Vectors
from ...data.source import VectorSource
from ..base import Encoder, Projector
from .matrices import LARGEST_WEIGHT, Lengths, products, rows_per_product

Checks: TypeAlias = dict[str, Callable[[Any, str], Any]]
Layout: TypeAlias = dict[str, tuple[Any, tuple[int | None, ...]]]


class ParametricEncoder(Encoder):
    """An encoder whose class says which values and which arrays describe it; the rest of storing it is here."""

    _checks: ClassVar[Checks]
    """The values that describe it beside `dim` and `n_bits`, each with the function that checks it."""

    _at_most_dim: ClassVar[bool] = False
    """Whether there cannot be more bits than dimensions; if so, as many are the default."""

    def __init__(self, dim: int, n_bits: int | None, **values: Any) -> None:
        super().__init__(dim, dim if n_bits is None and self._at_most_dim else n_bits)
        if self._at_most_dim and self.n_bits > self.dim:
            raise ValueError(f"n_bits must be at most dim = {self.dim} for {type(self).__name__}, got {self.n_bits}")
        for name, check in self._checks.items():
            setattr(self, name, check(values[name], name))

    @abstractmethod
    def _layout(self) -> Layout:
        """Return the type and the shape of each array beside `centre`; None is any size."""

    def _check_arrays(self) -> None:
        """Raise ValueError where arrays of the right types and shapes contradict each other."""

    def config(self) -> dict[str, Any]:
        """Describe the encoder apart from its arrays, in values that JSON can hold."""
        values = {name: getattr(self, name) for name in ("dim", "n_bits", *self._checks)}
        return {"encoder": self.name, "fitted": self.is_fitted} | values

    def to_arrays(self) -> Arrays:
        """Return the parameters as plain arrays."""
        return {name: getattr(self, name) for name in ("centre", *self._layout())}

    @classmethod
    def from_arrays(cls, config: dict[str, Any], arrays: Arrays) -> Self:
        """Rebuild the encoder that gave `config` and `arrays`; nothing is drawn or computed again.

        Whatever does not fit raises ValueError, before memory is taken for it.
        """
        try:
            as_choice(config["encoder"], "encoder", (cls.name,))
            dim = as_count(config["dim"], "dim", most=MOST_DIM)
            n_bits = as_count(config["n_bits"], "n_bits", most=MOST_BITS)
            centre = _finite(arrays, "centre", np.float32, (dim,))  # first: it shows that dim is no fancy
            encoder = cls.__new__(cls)
            ParametricEncoder.__init__(encoder, dim, n_bits, **{name: config[name] for name in cls._checks})
            encoder.centre = centre
            encoder.is_fitted = as_flag(config["fitted"], "fitted")
            for name, (dtype, shape) in encoder._layout().items():
                setattr(encoder, name, _finite(arrays, name, dtype, shape))
            encoder._check_arrays()
            if "scale" in cls._checks and not Lengths(*(config[name] for name in Lengths._fields)).are_sound():
                raise ValueError("scale, scale_variance and overlap must be such that distances can be estimated")
        except KeyError as error:
            raise ValueError(f"a stored {cls.__name__} must have {error}") from None
        except TypeError as error:
            raise ValueError(f"not a stored {cls.__name__}: {error}") from None
        return encoder


class MatrixEncoder(ParametricEncoder):
    """An encoder that multiplies centred vectors by a matrix, and makes projections of the products.

    BLAS multiplies, and so projections of a vector agree from batch to batch to rounding (about 1e-6 of the largest),
    and bits wherever that does not decide them. They do not depend on the number of threads.

    Attributes
    ----------
    weights : float32 array of shape (n_columns, dim)
        The matrix; it has no rows until `fit` where it comes from the data.
    """

    weights: Vectors

    def _check_arrays(self) -> None:
        largest = float(np.abs(self.weights).max(initial=0))
        if len(self.weights) and not 0 < largest <= self._largest_weight():
            raise ValueError(
                f"weights must be up to {self._largest_weight():.3g} and not all 0, got up to {largest:.3g}"
            )

    def _largest_weight(self) -> float:
        """Return what no weight of an encoder that was drawn or fitted exceeds."""
        return LARGEST_WEIGHT

    def _finish(self, products: Projections) -> Projections:
        """Make projections of products, (n, n_columns), which may be overwritten; a linear encoder takes them."""
        return products

    def _projector(self) -> Projector:
        if len(self.weights) == 0:
            raise ValueError(f"{type(self).__name__} must be fitted before it can project: call fit(X)")
        return lambda rows: self._finish(products(rows, self.centre, self.weights))

    def _rows_per_block(self, source: VectorSource) -> int:
        return rows_per_product(self.dim, self.n_bits)


def _finite(arrays: Arrays, name: str, dtype: Any, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return `arrays[name]` if it has this type and shape and holds finite numbers."""
    array = as_array(arrays, name, dtype, shape)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    return array

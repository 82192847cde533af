"""Base classes of the baselines: encoders described by named values and arrays, which are checked when loaded."""

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
    """An encoder that can be stored: a subclass declares its values and arrays."""

    _checks: ClassVar[Checks]
    """Names of the values in addition to `dim` and `n_bits`, each with the function that checks the value."""

    _at_most_dim: ClassVar[bool] = False
    """Whether `n_bits` is at most `dim`, and `dim` by default."""

    def __init__(self, dim: int, n_bits: int | None, **values: Any) -> None:
        super().__init__(dim, dim if n_bits is None and self._at_most_dim else n_bits)
        if self._at_most_dim and self.n_bits > self.dim:
            raise ValueError(f"n_bits must be at most dim = {self.dim} for {type(self).__name__}, got {self.n_bits}")
        for name, check in self._checks.items():
            setattr(self, name, check(values[name], name))

    @abstractmethod
    def _layout(self) -> Layout:
        """Return dtype and shape of each array except `centre`; None stands for any size."""

    def _check_arrays(self) -> None:
        """Raise ValueError if arrays of the right dtypes and shapes contradict each other."""

    def config(self) -> dict[str, Any]:
        """Return the options of the encoder as JSON values."""
        values = {name: getattr(self, name) for name in ("dim", "n_bits", *self._checks)}
        return {"encoder": self.name, "fitted": self.is_fitted} | values

    def to_arrays(self) -> Arrays:
        """Return the parameters as named arrays."""
        return {name: getattr(self, name) for name in ("centre", *self._layout())}

    @classmethod
    def from_arrays(cls, config: dict[str, Any], arrays: Arrays) -> Self:
        """Rebuild an encoder from its `config` and `arrays`, without drawing or training.

        Inconsistent values raise ValueError before memory is allocated for them.
        """
        try:
            as_choice(config["encoder"], "encoder", (cls.name,))
            dim = as_count(config["dim"], "dim", most=MOST_DIM)
            n_bits = as_count(config["n_bits"], "n_bits", most=MOST_BITS)
            centre = _finite(
                arrays, "centre", np.float32, (dim,)
            )  # first, as proof of `dim` before anything is allocated
            encoder = cls.__new__(cls)
            ParametricEncoder.__init__(encoder, dim, n_bits, **{name: config[name] for name in cls._checks})
            encoder.centre = centre
            encoder.is_fitted = as_flag(config["fitted"], "fitted")
            for name, (dtype, shape) in encoder._layout().items():
                setattr(encoder, name, _finite(arrays, name, dtype, shape))
            encoder._check_arrays()
            if "scale" in cls._checks and not Lengths(*(config[name] for name in Lengths._fields)).are_sound():
                raise ValueError("scale, scale_variance and overlap must allow estimates of distances in float32")
        except KeyError as error:
            raise ValueError(f"a stored {cls.__name__} must have {error}") from None
        except TypeError as error:
            raise ValueError(f"not a stored {cls.__name__}: {error}") from None
        return encoder


class MatrixEncoder(ParametricEncoder):
    """An encoder that multiplies centred vectors by a matrix and computes projections from the products.

    BLAS computes the products. The projections of a vector therefore agree between batches up to rounding (about 1e-6
    of the largest), and a bit may differ only if its projection is 0 up to rounding. Projections do not depend on the
    number of threads.

    Attributes
    ----------
    weights : float32 array of shape (n_columns, dim)
        The matrix. It has no rows before `fit` if it is trained.
    """

    weights: Vectors

    def _check_arrays(self) -> None:
        largest = float(np.abs(self.weights).max(initial=0))
        if len(self.weights) and not 0 < largest <= self._largest_weight():
            raise ValueError(
                f"weights must be up to {self._largest_weight():.3g} and not all 0, got up to {largest:.3g}"
            )

    def _largest_weight(self) -> float:
        """Return a bound on the weights of any encoder that was drawn or fitted."""
        return LARGEST_WEIGHT

    def _finish(self, products: Projections) -> Projections:
        """Return the projections for products, (n, n_columns), which may be overwritten: the same if linear."""
        return products

    def _projector(self) -> Projector:
        if len(self.weights) == 0:
            raise ValueError(f"{type(self).__name__} must be fitted before it can project: call fit(X)")
        return lambda rows: self._finish(products(rows, self.centre, self.weights))

    def _rows_per_block(self, source: VectorSource) -> int:
        return rows_per_product(self.dim, self.n_bits)


def _finite(arrays: Arrays, name: str, dtype: Any, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return `arrays[name]` if it has this dtype and shape and is finite."""
    array = as_array(arrays, name, dtype, shape)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    return array

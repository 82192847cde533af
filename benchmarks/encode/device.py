"""A contender that encodes on another device: cbeindex by the FFT of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.encode.contenders import Encoding


class OnDevice(Encoding):
    """cbeindex on a tensor of torch, which is on the device before the time begins, as its codes are when it ends.

    Parameters
    ----------
    dim, n_rows : int
    device : str
        A device of torch: "cuda", "mps", "cpu" and so on.
    """

    def __init__(self, dim: int, n_rows: int, device: str) -> None:
        import torch

        from cbeindex import CirculantEncoder

        super().__init__(dim, n_rows)
        if device == "cpu":
            torch.set_num_threads(1)
        self._torch, self._device = torch, torch.device(device)
        self._encoder = CirculantEncoder(dim, n_bits=dim)
        self._tensor = torch.from_numpy(self.rows.copy()).to(self._device)

    def encode(self, rows: NDArray[np.float32]) -> Any:
        codes = self._encoder.encode(self._tensor)
        if self._device.type != "cpu":
            getattr(self._torch, self._device.type).synchronize()
        return codes

    def differing_bits(self) -> float:
        """Return the share of bits that differ from those of the kernels."""
        ours, theirs = self._encoder.encode(self.rows), self.encode(self.rows).cpu().numpy()
        return float(np.bitwise_count(ours ^ theirs).mean() / 8)

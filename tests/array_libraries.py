"""Libraries whose arrays stay on their device."""

import numpy as np
import pytest

REASON = "make test-torch installs it"


def library(name):
    """The functions that make an array of a library of a numpy array, and one of numpy of an array of the library."""
    if name == "array_api_strict":
        module = pytest.importorskip("array_api_strict", reason="no wheel for this platform")
        return module.asarray, np.asarray
    if name == "torch":
        torch = pytest.importorskip("torch", reason=REASON)
        return lambda array: torch.from_numpy(np.array(array)), lambda tensor: tensor.detach().numpy()
    jax = pytest.importorskip("jax", reason="not installed")
    return jax.numpy.asarray, np.asarray

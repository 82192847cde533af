"""Contenders in processes of their own, timed in turn.

A contender is any object of an importable class. It lives in a fresh process with the thread count pinned, so that
two OpenMP pools never meet; the parent calls its methods one contender at a time, in rounds, so that noise of the
machine falls on all of them alike.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Cores that this process may use, before it pins itself to some.
_CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


class ContenderError(Exception):
    """A contender failed; the text is its traceback, or says that it died or took too long."""


def last_line(error: Exception) -> str:
    """Return what an error is, and what it says at its end."""
    text = str(error) if isinstance(error, ContenderError) else f"{type(error).__name__}: {error}"
    return text.strip().splitlines()[-1][:200]


@dataclass
class Timing:
    """Seconds of one kind of call over the rounds."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    def spread(self, scale: float = 1.0) -> str:
        """Minimum and maximum, multiplied by `scale`."""
        return f"{min(self.seconds) * scale:.4g}-{max(self.seconds) * scale:.4g}"


class Contender:
    """An object in another process.

    Parameters
    ----------
    factory : str
        "module:callable" that makes the object there.
    arguments : dict
        Keyword arguments of the callable.
    n_threads : int
        Cores and OpenMP threads that the process gets.
    timeout : float
        Seconds after which a call is given up.
    environment : dict, optional
        Environment variables of the process, beside those of this one.
    """

    def __init__(
        self,
        factory: str,
        arguments: dict[str, Any],
        *,
        n_threads: int = 1,
        timeout: float = 600,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.factory = factory
        self._timeout = timeout
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        threads = {name: str(n_threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        with _environment({**(environment or {}), **threads}):
            self._process = context.Process(target=_serve, args=(theirs, factory, arguments, n_threads), daemon=True)
            self._process.start()
        theirs.close()
        try:
            self._receive()
        except ContenderError:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return its result."""
        return self.timed(method, *arguments)[1]

    def timed(self, method: str, *arguments: Any) -> tuple[float, Any]:
        """Call a method; return the seconds it took there, and its result."""
        try:
            self._pipe.send((method, arguments))
        except OSError as error:
            raise ContenderError(f"{self.factory} is gone: {error}") from error
        return self._receive()  # type: ignore[no-any-return]

    def is_alive(self) -> bool:
        """Tell whether the process can still be called: after an error of its own it can."""
        return self._process.is_alive()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> Any:
        try:
            if not self._pipe.poll(self._timeout):
                self._process.kill()
                self._process.join()
                raise ContenderError(f"{self.factory} gave no answer in {self._timeout:.0f} s")
            ok, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise ContenderError(f"{self.factory} died with exit code {self._process.exitcode}") from None
        if not ok:
            raise ContenderError(answer)
        return answer


def alternate(calls: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: bool = True) -> dict[str, Timing]:
    """Make each call once unrecorded, then in turn for some rounds; a call returns the seconds it took."""
    for call in calls.values() if warm_up else ():
        call()
    timings: dict[str, Timing] = {name: Timing([]) for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            timings[name].seconds.append(call())
    return timings


def pin(n_threads: int) -> None:
    """Pin all threads of this process to the last `n_threads` cores (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        cores = _CORES[-n_threads:]
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread), cores)


def forget_peak_memory() -> None:
    """Let `peak_memory` count from what this process holds now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Largest resident memory of this process since `forget_peak_memory`, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def resident_memory(without: str | Path) -> int | None:
    """Return the resident memory of this process in bytes, without the files of a folder; None if it is not known.

    Files of folders in it count. Memory that was freed but not returned to the system does not.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except (OSError, AttributeError, TypeError):
        return None
    total, folder, counts = 0, Path(without).resolve(), True
    for line in lines:
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):  # the first line of a mapping, with the path of its file at the end
            counts = len(words) < 6 or Path(words[5]).parent != folder
        elif words[0] == "Rss:" and counts:
            total += int(words[1]) * 1024
    return total


def _serve(pipe: Any, factory: str, arguments: dict[str, Any], n_threads: int) -> None:
    """Make the object and answer calls until the pipe closes."""
    pin(n_threads)
    module, name = factory.split(":")
    made: Any = None
    method, arguments_of_call = "", ()
    while True:
        try:
            if made is None:
                made = getattr(importlib.import_module(module), name)(**arguments)
                answer: Any = None
            else:
                start = time.perf_counter()
                result = getattr(made, method)(*arguments_of_call)
                answer = (time.perf_counter() - start, result)
            pipe.send((True, answer))
        except Exception:
            pipe.send((False, traceback.format_exc()))
        try:
            method, arguments_of_call = pipe.recv()
        except (EOFError, OSError):
            return


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

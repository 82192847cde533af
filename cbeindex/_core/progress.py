"""Progress bars."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

_is_shown = ContextVar("is_shown", default=False)


@contextmanager
def progress_bar(wanted: bool, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the number of units just completed; show a bar if `wanted`."""
    if not wanted:
        yield lambda n: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from None
    lock = threading.Lock()  # tqdm is not thread-safe, and several threads report
    is_part = _is_shown.get()
    token = _is_shown.set(True)
    try:
        with tqdm(total=total, unit=f" {unit}", unit_scale=True, leave=not is_part) as bar:

            def advance(n: int) -> None:
                with lock:
                    bar.update(n)

            yield advance
    finally:
        _is_shown.reset(token)


def part_bar(total: int, unit: str) -> AbstractContextManager[Callable[[int], object]]:
    """Do as `progress_bar` for a part of the work: show a bar if the bar of the whole is shown in this thread."""
    return progress_bar(_is_shown.get(), total, unit)

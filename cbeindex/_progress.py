"""Progress on long work, for those who ask for it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(wanted: bool, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Give a function that is told how many more units are done; it shows a bar if one is wanted."""
    if not wanted:
        yield lambda n: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from None
    lock = threading.Lock()  # several threads report, and a bar adds up without one
    with tqdm(total=total, unit=f" {unit}", unit_scale=True) as bar:

        def advance(n: int) -> None:
            with lock:
                bar.update(n)

        yield advance

"""A use with kernels of its own, which compile fast, for the measurement of a start."""


def tiny():
    """Call two kernels, one of which calls a third."""
    from tests.tiny_kernels import add, twice_added

    yield "add"
    add(1, 2)
    add(1.5, 2)
    yield "search"
    twice_added(1, 2)


def failing():
    """Fail."""
    yield "add"
    raise RuntimeError("no rows")

"""A small package of documented functions, for the examples that read docstrings."""

from pathlib import Path


def write_functions(folder: Path) -> None:
    """Write two modules of two functions each that do nearly the same; one docstring has the end of a script in it."""
    package = folder / "shapes"
    package.mkdir()
    (package / "circle.py").write_text(
        'def area(r):\n    """Return the area of a circle with the given radius in square metres."""\n'
        'def extent(r):\n    """Return the surface area of a circle with the given radius and colour."""\n'
    )
    (package / "text.py").write_text(
        'def upper(s):\n    """Turn every letter of a sentence into its upper case form at once."""\n'
        'def lower(s):\n    """Turn every letter of a sentence into its lower case form instead. </script><b>"""\n'
    )

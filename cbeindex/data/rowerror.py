"""The error about one row of the input."""

from __future__ import annotations


class RowError(ValueError):
    """A row of the input breaks a rule: "X must be finite in float32, row 3 is not".

    Parameters
    ----------
    name : str
        The argument or file that has the row.
    rule : str
        What every row must satisfy.
    row : int
        Number of the row in `name`, from 0 on.
    problem : str
        What the row does instead.
    """

    def __init__(self, name: str, rule: str, row: int, problem: str) -> None:
        super().__init__(name, rule, row, problem)
        self.name, self.rule, self.row, self.problem = name, rule, row, problem

    def __str__(self) -> str:
        return f"{self.name} {self.rule}, row {self.row} {self.problem}"

    def relocated(self, name: str, row: int) -> RowError:
        """Return the same error about row `row` of `name`: for rows that came from a larger array or from a file."""
        return RowError(name, self.rule, row, self.problem)

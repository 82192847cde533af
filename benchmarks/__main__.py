"""`python -m benchmarks [--isa LEVEL] NAME [options]`: run one measurement."""

import importlib
import sys

from benchmarks import isa

# Each module has main(arguments) and says what it measures in the first line of its docstring.
NAMES = (
    "recall", "promise", "latency", "encode", "scan", "kernels", "start", "quality", "bytes", "buckets", "growth",
    "files", "memory", "sharded", "paper", "picture", "hdf5",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the measurement that the first argument names, with the rest of the arguments."""
    if arguments[:1] == ["--isa"]:
        try:
            isa.use(arguments[1] if len(arguments) > 1 else "nothing")
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        arguments = arguments[2:]
    if not arguments or arguments[0] not in NAMES:
        print(f"usage: python -m benchmarks [--isa {{{','.join(isa.LEVELS)}}}] NAME [--quick] [--help]\n")
        for name in NAMES:
            summary = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").splitlines()[0]
            print(f"  {name:9} {summary}")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    importlib.import_module(f"benchmarks.{arguments[0]}").main(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m benchmarks NAME [options]`: run one measurement."""

import importlib
import sys

# Each module has main(arguments) and says what it measures in the first line of its docstring.
NAMES = ("recall", "encode", "scan", "kernels", "lookups", "quality", "buckets", "files", "paper")


def main(arguments: list[str]) -> int:
    """Run the measurement that the first argument names, with the rest of the arguments."""
    if not arguments or arguments[0] not in NAMES:
        print("usage: python -m benchmarks NAME [--quick] [--help]\n")
        for name in NAMES:
            summary = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").splitlines()[0]
            print(f"  {name:8} {summary}")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    importlib.import_module(f"benchmarks.{arguments[0]}").main(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

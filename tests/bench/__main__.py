"""Run the benchmarks named on the command line, or all of them."""

from __future__ import annotations

import importlib
import sys

# Each module has `measure() -> list[Result]`; the longest come last.
NAMES = (
    *("start_up", "artifact_load", "row_forms", "host_adamw", "pipeline", "update_wait", "accumulation"),
    *("training_step", "tokens", "build_adamw", "placement", "scale"),
)


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        print(f"-- {name}", flush=True)
        for result in importlib.import_module(f"tests.bench.{name}").measure():
            print(result.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The child process: a belief's name on standard input, what its kernel did on standard output
(JSON, a line each).
"""

from __future__ import annotations

import json
import sys

from tests.gpu.forms import BELIEFS


def main() -> None:
    from tests.gpu.forms.belief import run
    from tkc.errors import DeviceError

    for line in sys.stdin:
        b = BELIEFS[line.strip()]
        try:
            answer = {"wrong": b.wrong(found := run(b)), "told": b.told(found)}
        except DeviceError as e:
            answer = {"wrong": str(e)}
        except Exception as e:
            answer = {"wrong": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

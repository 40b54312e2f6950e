"""Runs as a process of its own: asks jetson-stats, and prints what it says, a JSON object a line.

    {"power": ...}    what ``jtop.power`` holds, each time the service has something new
    {"error": "..."}  why there is nothing more to come

jetson-stats is AGPL-3.0, talks to a service, and starts threads and processes. In a process of its
own it can hang, print and die as it likes. It ends with its stdin, which its reader holds.
"""

from __future__ import annotations

import json
import os
import sys
import threading


def _end_with_reader() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    threading.Thread(target=_end_with_reader, daemon=True).start()
    # What jetson-stats prints must not mix with our lines.
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    sys.path.pop(0)  # the folder of this file, whose jtop.py is ours
    try:
        from jtop import jtop

        with jtop() as jetson:
            while jetson.ok():
                print(json.dumps({"power": jetson.power}, default=repr), file=lines)
        ending = "the service has ended"
    except BaseException as error:  # its own are not all of class Exception
        ending = f"{type(error).__name__}: {error}"
    print(json.dumps({"error": ending}), file=lines)
    os._exit(0)  # its threads may never end


if __name__ == "__main__":
    main()

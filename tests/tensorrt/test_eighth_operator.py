"""The example of docs/tensorrt.md, an operator in one file, compiles and joins the library."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bitmtp_edge.operators import OPERATORS

from .conformance import Refused, Session

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"


def example() -> tuple[str, str]:
    """Name and text of the file that docs/tensorrt.md shows."""
    text = (ROOT / "docs" / "tensorrt.md").read_text()
    found = re.search(r"```cpp\n// plugins/tensorrt/operators/(\S+)\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found.group(1), found.group(2)


def cached(folder: Path, name: str) -> str:
    """A value of the build folder's CMakeCache.txt, or of its compilers' description."""
    found = re.search(rf"^{name}:\w+=(.+)$", (folder / "CMakeCache.txt").read_text(), re.MULTILINE)
    assert found is not None, name
    return found.group(1)


@pytest.fixture(scope="module")
def extended(plugin_library: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library under test, linked anew with the example."""
    folder = Path(plugin_library).parent
    link = folder / "CMakeFiles" / "bitmtp_tensorrt.dir" / "link.txt"
    if not link.exists():
        pytest.skip("the library does not lie in the folder that it was built in")
    made = tmp_path_factory.mktemp("eighth")
    name, text = example()
    source, compiled, library = made / name, made / f"{name}.o", made / "libeight.so"
    source.write_text(text)
    build = folder.parent
    includes = [PLUGINS / "include", PLUGINS, PLUGINS / "tensorrt"]
    includes.append(Path(cached(build, "BITMTP_TENSORRT_INCLUDE")))
    subprocess.run(
        [
            cached(build, "CMAKE_CUDA_COMPILER"),
            *("-std=c++17", "-arch=sm_87", "-Xcompiler=-fPIC,-fvisibility=hidden", "-c"),
            *(f"-I{include}" for include in includes),
            *(str(source), "-o", str(compiled)),
        ],
        check=True,
    )
    command = shlex.split(link.read_text())
    command[command.index("-o") + 1] = str(library)
    subprocess.run([*command, str(compiled)], check=True, cwd=folder)
    return library


def test_one_file_is_an_eighth_operator(extended: Path, session: Session) -> None:
    eight = Session(session.conformance, str(extended))
    creators = eight.creators()
    assert creators.keys() - OPERATORS.keys() == {"SoftCap"}
    assert [name for name, _ in creators["SoftCap"]] == [
        "width",
        "cap",
        "input_ports",
        "output_ports",
    ]
    fields = [("width", 64), ("cap", 30.0), ("input_ports", 1), ("output_ports", 1)]
    plugin = eight.take_through("SoftCap", fields, [("float32", (3, 64))], 1)
    assert plugin.outputs == [("float32", (3, 64))]
    plugin.release()
    with pytest.raises(Refused, match="cap is 0, expected more than 0"):
        eight.take_through("SoftCap", [fields[0], ("cap", 0.0), *fields[2:]], [], 1)

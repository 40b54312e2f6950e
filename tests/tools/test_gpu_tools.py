"""tools/test_gpu.sh and tools/profile_gpu.sh on machines that are made up: what is missing is told
in one line, and what fails fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
GPU = "echo 9.0"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a tool where there are only the programs ``has``, name to body, and what every machine
    has. ``built/cuda/bitmtp_cuda_sweep`` fails with a seed of 13."""
    commands, built = tmp_path / "bin", tmp_path / "built" / "cuda"
    commands.mkdir()
    built.mkdir(parents=True)

    def make(path: Path, body: str) -> None:
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
        path.chmod(0o755)

    make(built / "bitmtp_cuda_sweep", 'echo "sweep $*"; [[ $* != *"--seed 13"* ]]')
    for command in ("bash", "dirname", "sed"):
        found = shutil.which(command)
        assert found
        (commands / command).symlink_to(found)

    def call(tool: str, *arguments: object, **has: str) -> subprocess.CompletedProcess[str]:
        for name, body in has.items():
            make(commands / name.replace("_", "-"), body)
        return subprocess.run(
            [TOOLS / tool, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": str(commands), "CUDA_HOME": "/none"},
        )

    return call


@pytest.mark.parametrize("tool", ["test_gpu.sh", "profile_gpu.sh"])
@pytest.mark.parametrize("driver", ["", "exit 9", "true"], ids=["none", "no device", "no line"])
def test_without_a_gpu(run: Run, tool: str, driver: str) -> None:
    done = run(tool, **({"nvidia_smi": driver} if driver else {}))
    assert done.returncode == 2
    assert done.stderr.startswith("no NVIDIA GPU: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("test_gpu.sh", (), "nvcc (of the CUDA toolkit), c++ (package g++), cmake, compute-san"),
        (
            "test_gpu.sh",
            ("sweep",),
            "missing: nvcc (of the CUDA toolkit), c++ (package g++), cmake;",
        ),
        ("test_gpu.sh", ("--built", "built"), "missing: compute-sanitizer (of the CUDA toolkit);"),
        ("profile_gpu.sh", ("--built", "built"), "missing: ncu (of the CUDA toolkit), python3;"),
        ("test_gpu.sh", ("--built", "built", "ampere"), "ampere is a build of its own: leave out"),
        ("test_gpu.sh", ("--built", "none"), "--built names no folder"),
        ("test_gpu.sh", ("--python", "none"), "--python names no program"),
        ("test_gpu.sh", ("--seed",), "--seed lacks its value; usage: tools/test_gpu.sh ["),
        ("test_gpu.sh", ("swep",), "unknown argument swep; usage: tools/test_gpu.sh ["),
        ("profile_gpu.sh", ("--bench",), "--bench lacks its value; usage: tools/profile_gpu.sh ["),
    ],
)
def test_what_is_missing_is_told(
    run: Run, tool: str, arguments: tuple[str, ...], told: str
) -> None:
    done = run(tool, *arguments, nvidia_smi=GPU)
    assert done.returncode == 2
    assert told in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_an_interpreter_that_lacks_packages(run: Run) -> None:
    done = run("test_gpu.sh", "--built", "built", "--python", "bare", "pytest", nvidia_smi=GPU,
               bare="echo onnx torch")  # fmt: skip
    assert done.returncode == 2
    assert "bin/bare lacks packages: install onnx torch, or " in done.stderr


@pytest.mark.parametrize(
    ("part", "seed", "faulty", "failed"),
    [
        ("sweep", 7, "", None),
        ("sweep", 13, "", "sweep"),
        ("sanitize", 7, "", None),
        ("sanitize", 7, "racecheck", "racecheck"),
        ("sanitize", 13, "", "memcheck racecheck initcheck"),
    ],
)
def test_what_fails(run: Run, part: str, seed: int, faulty: str, failed: str | None) -> None:
    """compute-sanitizer runs every tool even if one finds something."""
    sanitizer = f'echo "$2"; [[ $2 != "{faulty}" ]] || exit "$4"; shift 4; exec "$@"'
    done = run("test_gpu.sh", "--built", "built", "--seed", seed, part, nvidia_smi=GPU,
               compute_sanitizer=sanitizer)  # fmt: skip
    assert done.returncode == (0 if failed is None else 1)
    assert done.stderr == ("" if failed is None else f"failed: {failed}\n")
    assert f"repeat with --seed {seed}\n" in done.stdout
    tools = [line for line in done.stdout.splitlines() if line.endswith("check")]
    assert tools == (["memcheck", "racecheck", "initcheck"] if part == "sanitize" else [])


def test_a_seed_is_new_every_time(run: Run) -> None:
    told = {run("test_gpu.sh", "--built", "built", "sweep", nvidia_smi=GPU).stdout for _ in "123"}
    assert len(told) > 1


# ---- the profile ---------------------------------------------------------------------------------

# As much of Nsight Compute as is asked for: a step of two layers, again and again.
PROFILER = r"""
import csv, re, sys
options = sys.argv
value = lambda name: options[options.index(name) + 1]
inner = "void bitmtp::cuda::<unnamed>::linear_kernel<bitmtp::cuda::Tile<(int)4>>(Args)"
layer = [("norm_kernel(Args)", 1, 1500), (inner, 528, 3000), (inner, 99, 7000)]
step = [("embedding_kernel(Args)", 1, 1000), *layer, *layer, ("head_kernel(Args)", 9, 30000)]
wanted = re.compile(value("-k").removeprefix("regex:").strip("^$"))
skip = int(value("-s")) if "-s" in options else 0
chosen = [each for each in step * 3 if wanted.search(each[0])][skip:][: int(value("-c"))]
with open(value("--log-file"), "w") as log:
    log.write("==PROF== Connected\n")
    rows = csv.writer(log, quoting=csv.QUOTE_ALL)
    rows.writerow(["ID", "Kernel Name", "Block Size", "Grid Size", "Section Name", "Metric Name",
                   "Metric Value"])
    for index, (name, grid, time) in enumerate(chosen):
        def row(section, metric, number):
            rows.writerow([index, name, "(128, 1, 1)", f"({grid}, 1, 1)", section, metric, number])
        if "--section" in options:
            stalled = "smsp__average_warps_issue_stalled_%s_per_issue_active.ratio"
            row("GPU Speed Of Light Throughput", "Duration", time + 1)
            row("GPU Speed Of Light Throughput", "DRAM Throughput", "71.4")
            row("GPU Speed Of Light Throughput", "", "")
            row("Command line", stalled % "long_scoreboard", "3.0")
            row("Command line", stalled % "wait", "1.0")
            row("Command line", "smsp__average_warps_issue_stalled_wait_per_issue_active.pct", "99")
        else:
            row("Command line", "gpu__time_duration.sum", f"{time:,}")
"""


def test_the_hottest_kernels(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ncu.py").write_text(PROFILER)
    python = f'exec {sys.executable} "$@"'
    done = run("profile_gpu.sh", "--built", "built", "--bench", "W2 M=1 ", nvidia_smi=GPU,
               python3=python, ncu=f'exec {sys.executable} {tmp_path / "ncu.py"} "$@"')  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "--bench W2 M=1 : 8 launches, 54.0 us one by one"
    assert lines[1] == " 55.6 %    1 x   30.00 us  head_kernel (9, 1, 1)x(128, 1, 1)"
    assert lines[2] == " 25.9 %    2 x    7.00 us  linear_kernel<Tile<4>> (99, 1, 1)x(128, 1, 1)"
    assert lines[6] == "head_kernel (9, 1, 1)x(128, 1, 1)"
    assert lines[7].startswith("  30.00 us; DRAM 71 %, SM ?")
    assert lines[10] == "linear_kernel<Tile<4>> (99, 1, 1)x(128, 1, 1)"
    assert lines[13].endswith("for each instruction: long scoreboard 75 %, wait 25 %")


def test_a_profiler_that_may_not_measure(run: Run) -> None:
    refuses = "echo '==ERROR== ERR_NVGPUCTRPERM: no permission'  >&2; exit 1"
    done = run("profile_gpu.sh", "--built", "built", nvidia_smi=GPU, ncu=refuses,
               python3=f'exec {sys.executable} "$@"')  # fmt: skip
    assert done.returncode == 2
    told = "Nsight Compute measured nothing: ERR_NVGPUCTRPERM: no permission\n"
    assert done.stderr == told and not done.stdout

"""The kernel of small sums: it compiles, and on the CPU's threads its ranks agree whatever order they run in."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from rlx.backends.cuda import peers
from rlx.backends.cuda.nvrtc import available, compile_ptx_only
from tests.gpu.host_library import compiler

SIZES = {"THREADS": 4, "BLOCKS": 3, "EACH": 2}


@pytest.mark.skipif(not available(), reason="no NVRTC")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_it_compiles_for_each_dtype(dtype: str) -> None:
    for aligned, added in itertools.product((False, True), repeat=2):
        text = peers.kernel_of(dtype, aligned, 1, 3, added).cuda
        assert text is not None
        code = compile_ptx_only(text).decode()
        # Data and mark are one access, seen by all GPUs, and no array of a thread lies in memory.
        assert "st.relaxed.sys.global.v2.u64" in code and "ld.relaxed.sys.global.v2.u64" in code
        assert ".local" not in code
        assert "griddepcontrol.wait" in code  # it may be launched early


def program(folder: Path, ranks: int, added: bool) -> Path:
    """The program that runs the kernels of so many ranks."""
    kernels, calls = [], []
    for rank in range(ranks):
        text = peers.kernel_of("f32", True, rank, ranks, added).cuda or ""
        for name, size in SIZES.items():
            text = re.sub(rf"(?m)^#define {name} \d+$", f"#define {name} {size}", text)
        names = re.findall(r"(?m)^#define (\w+)", text)
        undone = "".join(f"#undef {name}\n" for name in (*names, "sum_of_peers"))
        kernels.append(f"namespace rank{rank} {{\n#define sum_of_peers sum_of_{rank}\n{text}\n}}\n{undone}")
        calls.append(
            f"    if (rank == {rank}) {{ rank{rank}::Inboxes in; for (int i = 0; i < {ranks}; i++) in.of[i] = all[i];"
            f" rank{rank}::sum_of_{rank}((word*)x, (word*)y, {'(word*)rest, (word*)z, ' * added}count, in, state, told,"
            " limit); }\n"
        )
    kernels.append(
        "static void kernel(int rank, float* x, float* y, float* rest, float* z, pair count, pair** all, word* state, "
        "word* told, pair limit) "
        f"{{\n{''.join(calls)}}}\n"
    )
    text = Path(__file__).with_name("peers_host.cpp").read_text().replace("\nKERNELS\n", "\n" + "".join(kernels))
    source, made = folder / "sums.cpp", folder / "sums"
    source.write_text(text)
    sizes = {"RANKS": ranks, "ADDED": int(added), **SIZES}
    options = [f"-D{name}_OF_TEST={size}" for name, size in sizes.items()]
    done = [str(compiler()), "-std=c++20", "-O1", "-pthread", "-w", *options, "-o", str(made), str(source)]
    subprocess.run(done, check=True, capture_output=True)
    return made


@pytest.mark.late
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("ranks, added", [(2, True), (3, False)])
def test_ranks_agree_in_any_order_of_their_threads(ranks: int, added: bool, tmp_path: Path) -> None:
    made = program(tmp_path, ranks, added)

    def said(*args: str) -> str:
        return subprocess.run([str(made), *args], check=True, capture_output=True, text=True, timeout=120).stdout

    assert said("1000") == "0 0\n"
    # A rank that does not come is named, and the others end.
    assert said("5", "apart") == f"1 {ranks}\n"

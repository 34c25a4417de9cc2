"""The head's kernels compile for NVIDIA GPUs on a machine that has none, down to machine code.

The interpreter forgives what Triton's compiler does not. Run as a program, this file compiles them and prints what each
needs as JSON: Triton must not be imported for the interpreter then, as the tests do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

GENERATIONS = {80: "A100", 90: "H100"}
TYPES = {
    "z": {"float32": "*fp32", "bfloat16": "*bf16"},
    "targets": "*i64",
    "stride": "i32",
    "words": "i32",
    "divisor": "fp32",
}
"""Types of the arguments; all others are float32 in memory."""


def _cases() -> Iterator[tuple[Any, int, dict[str, Any]]]:
    """Yield the kernels as they are started for a large vocabulary: warps, and what is constant."""
    from paribus_runners.native import head_triton

    yield head_triton._reduce, head_triton.WARPS, {"BLOCK": head_triton.COLUMNS}
    for entropy in (False, True):
        yield head_triton._differentiate, head_triton.PART_WARPS, {"WITH_ENTROPY": entropy, "BLOCK": head_triton.PART}


def _compiled(kernel: Any, warps: int, constant: dict[str, Any], generation: int, dtype: str) -> dict[str, Any]:
    """Return registers a thread, bytes of the stack, bytes of shared memory, and widths of accesses of memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [parameter.name for parameter in kernel.params]
    types = TYPES | {"z": TYPES["z"][dtype]}  # type: ignore[index]
    signature = {name: "constexpr" if name in constant else types.get(name, "*fp32") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in constant and n != "divisor"}
    source = ASTSource(kernel, signature, constant, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", generation, 32), options={"num_warps": warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        shown = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    wide = re.findall(r"(ld|st)\.global\.v4\.b32", made.asm["ptx"])
    return {**found, "threads": 32 * warps, "shared": made.metadata.shared, "wide": sorted(set(wide))}


@pytest.mark.slow
def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """For A100 and H100, in both types: no register is spilled, two programs fit a processor, accesses are wide."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(GENERATIONS) * 2 * 3
    for name, needs in found.items():
        assert needs["stack"] == needs["local"] == 0, name
        assert 2 * needs["threads"] * needs["reg"] <= 65_536, name  # registers of a processor
        assert needs["shared"] <= 48 * 1024, name
        assert needs["wide"] == (["ld"] if "_reduce" in name else ["ld", "st"]), name


if __name__ == "__main__":
    print(
        json.dumps(
            {
                f"{kernel.__name__} {constant} sm_{generation} {dtype}": _compiled(
                    kernel, warps, constant, generation, dtype
                )
                for kernel, warps, constant in _cases()
                for generation in GENERATIONS
                for dtype in TYPES["z"]
            }
        )
    )

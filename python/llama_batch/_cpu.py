"""Whether this CPU can run the extension module: asked before it is loaded, because the answer after that is SIGILL.

The build backend writes the instruction sets that a build takes for granted into `cpu-features.txt`, next to this file:
those of the machine for a build tuned to it, those of the baseline for one that is distributed. The names are those of
`/proc/cpuinfo`. This module imports nothing of the package, so that the build backend can load it by its path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RECORD = Path(__file__).with_name("cpu-features.txt")

# The instruction sets that a compiler emits by itself, in the names of /proc/cpuinfo. Others (mitigations, virtual
# machines, timers) say nothing about the code.
X86_INSTRUCTION_SETS = frozenset(
    "pni ssse3 sse4_1 sse4_2 popcnt avx avx2 fma f16c bmi1 bmi2 abm movbe aes pclmulqdq sha_ni gfni vaes vpclmulqdq "
    "avx_vnni avx_vnni_int8 avx_ifma avx_ne_convert amx_tile amx_int8 amx_bf16 amx_fp16 avx512f avx512cd avx512bw "
    "avx512dq avx512vl avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_bf16 "
    "avx512_fp16 avx512_vp2intersect".split()
)
ARM_INSTRUCTION_SETS = frozenset(
    "asimd fphp asimdhp asimddp asimdfhm i8mm bf16 sve sve2 svei8mm svebf16 sme sme2 atomics aes pmull sha1 sha2 sha3 "
    "sha512 crc32 fcma jscvt lrcpc".split()
)

# How macOS and Windows call what the baseline for distribution needs; what they cannot tell is not asked of them.
_MACOS_NAMES = {"SSE3": "pni", "SSSE3": "ssse3", "SSE4.1": "sse4_1", "SSE4.2": "sse4_2", "POPCNT": "popcnt"}
_MACOS_NAMES |= {"AVX1.0": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI1": "bmi1", "BMI2": "bmi2"}
_MACOS_NAMES |= {"LZCNT": "abm", "MOVBE": "movbe", "AVX512F": "avx512f"}
_WINDOWS_FEATURES = {13: "pni", 36: "ssse3", 37: "sse4_1", 38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f"}


def required() -> frozenset[str]:
    """The instruction sets that this build takes for granted; empty where the build recorded none."""
    try:
        return frozenset(RECORD.read_text(encoding="ascii").split())
    except FileNotFoundError:
        return frozenset()


def present() -> frozenset[str] | None:
    """The instruction sets of this CPU that this system can tell, or None where it tells nothing."""
    if sys.platform == "linux":
        return _linux()
    if sys.platform == "darwin" and os.uname().machine == "x86_64":
        return _macos()
    if sys.platform == "win32" and os.environ.get("PROCESSOR_ARCHITECTURE") == "AMD64":
        return _windows()
    return None


def known() -> frozenset[str]:
    """The instruction sets that this system could tell if the CPU had them."""
    if sys.platform == "darwin":
        return frozenset(_MACOS_NAMES.values())
    if sys.platform == "win32":
        return frozenset(_WINDOWS_FEATURES.values())
    return X86_INSTRUCTION_SETS | ARM_INSTRUCTION_SETS


def missing(needed: frozenset[str], found: frozenset[str] | None) -> list[str]:
    """What is needed and not found, sorted; nothing where the system cannot tell."""
    return [] if found is None else sorted((needed & known()) - found)


def check() -> None:
    """Refuse to go on where the extension module would be killed by its first unknown instruction.

    Raises:
        ImportError: The CPU lacks instruction sets that this build was made for. The text names them and the way out.
    """
    needed = required()
    lacking = missing(needed, present()) if needed else []
    if lacking:
        raise ImportError(
            f"this build of llama_batch needs a CPU with {', '.join(lacking)}, and this one has not. It was made for "
            "another machine. Build it on this one: pip install --force-reinstall --no-cache-dir "
            "--no-binary llama-batch llama-batch (in a checkout: pip install --force-reinstall .)",
            name="llama_batch._core",
        )


def _linux() -> frozenset[str] | None:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in {"flags", "Features"}:
                    return frozenset(value.split()) & (X86_INSTRUCTION_SETS | ARM_INSTRUCTION_SETS)
    except OSError:
        pass
    return None


def _macos() -> frozenset[str] | None:
    import subprocess  # only Macs ask this way, and the import takes ten milliseconds

    ask = ["/usr/sbin/sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features", "machdep.cpu.extfeatures"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return frozenset(_MACOS_NAMES[name] for name in told.split() if name in _MACOS_NAMES) or None


def _windows() -> frozenset[str] | None:
    import ctypes  # only Windows asks this way, and the import takes a millisecond

    ask = getattr(ctypes, "windll").kernel32.IsProcessorFeaturePresent  # noqa: B009 - absent from other systems' stubs
    return frozenset(name for number, name in _WINDOWS_FEATURES.items() if ask(number))

"""The processor that kernels are compiled and chosen for: this one, or for tests and measurements an older one."""

import os

import torch

# Leaves out what processors of this name lack: `avx512` (without bfloat16, as of 2019) or `avx2`.
OLDER = "FAIRLANE_TEST_PROCESSOR"
_LACKING = {"avx512": ("avx512_bf16", "amx"), "avx2": ("avx512", "amx")}
_FLAGS = {"avx512": ("-mno-avx512bf16",), "avx2": ("-mno-avx512f",)}


def supports(*features: str) -> bool:
    """Return whether the processor has all these features, by torch's names."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    lacking = _LACKING.get(os.environ.get(OLDER, ""), ())
    return all(found.get(feature) and not feature.startswith(lacking) for feature in features)


def compiler_flags() -> tuple[str, ...]:
    """Return the compiler's flags for this processor."""
    return ("-march=native", *_FLAGS.get(os.environ.get(OLDER, ""), ()))

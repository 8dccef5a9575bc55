"""Lets torchvision be imported next to a torch for CPUs: its wheel of PyPI is built for CUDA, so that its library of
operators does not load, and its import then fails at operators that are not defined. They are defined here, without
an implementation; image processors use none of them."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class BeforeTorchvision(MetaPathFinder):
    """Defines the operators just before the first import, so that processes without torchvision load no torch."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing: the import goes on with the other finders."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for operator in OPERATORS:
                self.library.define(operator)  # type: ignore[no-untyped-call]
            KEPT.append(self)
        return None


# The definitions last as long as their library.
KEPT: list[BeforeTorchvision] = []
sys.meta_path.insert(0, BeforeTorchvision())

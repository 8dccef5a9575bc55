"""Numbers on their way to the device, without the host waiting for it."""

from array import array

import torch


def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The numbers on the device; on a CPU the tensor itself.

    A GPU fetches it from page-locked memory: a copy from any other may first wait for all that was asked of the GPU.
    """
    if device.type == "cpu":
        return numbers
    if device.type != "cuda" or numbers.numel() == 0:
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


def int32(numbers: "array[int]") -> torch.Tensor:
    """The same numbers on the host, where they are: they must not change while the tensor lives."""
    return torch.frombuffer(numbers, dtype=torch.int32) if numbers else torch.empty(0, dtype=torch.int32)

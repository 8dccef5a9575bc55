"""Prompts, and what a runner alone makes of them."""

from fairlane.worker.model.reference import TransformersModel
from tests.support.worker.hand import Hand, lease

PROMPTS = [[5], [1, 2, 3], list(range(10, 27)), [60, 61, 62, 63, 64], list(range(90, 50, -1))]


def alone(model: TransformersModel, prompt: list[int], tokens: int) -> list[int]:
    hand = Hand(model)
    return hand.generate([hand.start(lease("alone", prompt))], tokens)[0]

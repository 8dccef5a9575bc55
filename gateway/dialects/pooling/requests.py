"""The common part of requests to models that generate nothing."""

from typing import Self

from msgspec.structs import replace

from fairlane.gateway.dialects.openai.requests import GenerationRequest


class PoolingRequest(GenerationRequest, frozen=True, kw_only=True):
    """A request whose jobs have one or more inputs and end with their prefill."""

    def fitted(self, longest: int) -> Self:
        return replace(self, truncate_prompt_tokens=longest) if self.truncate_prompt_tokens == -1 else self

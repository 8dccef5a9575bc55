"""What a model that reads only text is asked of a chat."""

from typing import TypeVar

from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest
from fairlane.gateway.pipeline.media_desk import with_media

Chat = TypeVar("Chat", bound=ChatRequest)


def of_text(request: Chat, reading: Reading) -> Chat:
    """The request with words in place of media, or the ApiError of those that are refused."""
    return with_media(request, reading, {}) if reading.found.given else request

"""LangChain's standard tests of a chat model, for pytest in the clients' own environment."""

import os
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestFairlane(ChatModelIntegrationTests):
    """LangChain's tests against the gateway that the environment names."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        chosen: type[BaseChatModel] = ChatOpenAI
        return chosen

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": os.environ["OPENAI_MODEL"], "stream_usage": True}

    @property
    def model_override_value(self) -> str:
        return os.environ["OPENAI_MODEL"]

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

"""LangChain's standard tests of a chat model, for pytest in the clients' own environment.

`OPENAI_OPTIONS`: more of the model's parameters as JSON. 41 tests pass with the default model and
`{"temperature": 0, "max_tokens": 512, "extra_body": {"close_json": true}}`, which take 10 minutes on two cores."""

import json
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
        options = json.loads(os.environ.get("OPENAI_OPTIONS", "{}"))
        return {"model": os.environ["OPENAI_MODEL"], "stream_usage": True, **options}

    @property
    def model_override_value(self) -> str:
        return os.environ["OPENAI_MODEL"]

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

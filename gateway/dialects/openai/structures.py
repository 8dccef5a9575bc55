"""Converts OpenAI's and vLLM's fields for structured output to one `Structure`.

`response_format` is OpenAI's; `structured_outputs` and the older `guided_*` are vLLM's."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from fairlane.common.views import about
from fairlane.gateway.dialects.grammar.structure import ANY_OBJECT, Structure, StructureKind
from fairlane.gateway.dialects.openai.field_types import Fields, Hint, NoneIfEmpty, Off, Text, json_text
from fairlane.gateway.errors import invalid
from fairlane.gateway.http.json_reader import read_text

# Characters of a schema as JSON, a regular expression or a grammar.
MAX_STRUCTURE_CHARS = 64 * 1024
MAX_STRUCTURE_CHOICES = 1_000
# vLLM's names.
_KINDS: dict[str, StructureKind] = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def _schema_text(schema: object) -> str:
    if isinstance(schema, str):
        try:
            schema = read_text(schema)
        except ValueError:
            raise PydanticCustomError("schema", "must be a JSON schema, or text that contains one") from None
    if not isinstance(schema, dict | bool):
        raise PydanticCustomError("schema", "must be a JSON schema: an object")
    return _short(json_text(schema))


def _short(text: str) -> str:
    if len(text) > MAX_STRUCTURE_CHARS:
        raise PydanticCustomError("structure", f"must have at most {MAX_STRUCTURE_CHARS} characters")
    return text


JsonSchema = Annotated[str, PlainValidator(_schema_text, json_schema_input_type=dict[str, Any] | str | bool)]
Pattern = Annotated[Text, Field(min_length=1), AfterValidator(_short)]
Choices = Annotated[
    list[Annotated[Text, Field(min_length=1)]], Field(min_length=1, max_length=MAX_STRUCTURE_CHOICES, fail_fast=True)
]


class NamedSchema(Fields):
    """A JSON schema; the response follows it whether `strict` or not."""

    name: Annotated[Hint | None, about("Name")] = None
    description: Annotated[Text | None, about("A description for the model")] = None
    schema_: Annotated[JsonSchema | None, Field(alias="schema"), about("The JSON schema")] = None
    strict: Annotated[bool | None, about("Whether calls or answers must match the schema")] = None


class ResponseFormat(Fields):
    """The format of the response: any text, any JSON object, or JSON that follows a schema."""

    type: Annotated[Literal["text", "json_object", "json_schema"], about("Kind of format")]
    json_schema: Annotated[NamedSchema | None, about("The schema, if the type is `json_schema`")] = None
    # As llama.cpp, Together and Fireworks have it.
    schema_: Annotated[JsonSchema | None, Field(alias="schema"), about("The schema, in place of `json_schema`")] = None


class StructuredOutputs(Fields):
    """vLLM's structured outputs: exactly one of these."""

    json_: Annotated[JsonSchema | None, Field(alias="json"), about("The answer is JSON that matches this schema")] = (
        None
    )
    regex: Annotated[Pattern | None, about("The answer matches this pattern")] = None
    choice: Annotated[Choices | None, about("The answer is one of these texts")] = None
    grammar: Annotated[Pattern | None, about("The answer matches this grammar")] = None
    json_object: Annotated[bool | None, about("The answer is a JSON object")] = None
    disable_fallback: Annotated[bool | None, about("Accepted: there is no other engine to fall back to")] = None
    disable_any_whitespace: Annotated[Off | None, about("Only false is supported")] = None
    disable_additional_properties: Annotated[Off | None, about("Only false is supported")] = None
    whitespace_pattern: Annotated[None, about("Not supported yet")] = None
    structural_tag: Annotated[None, about("Not supported yet")] = None


class StructureFields(Fields):
    """The fields of a body that request structured output."""

    response_format: Annotated[ResponseFormat | None, NoneIfEmpty, about("The required format of the answer")] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, about("The required format of the answer, in vLLM's form")
    ] = None
    guided_json: Annotated[JsonSchema | None, about("vLLM's older name for `structured_outputs.json`")] = None
    guided_regex: Annotated[Pattern | None, about("vLLM's older name for `structured_outputs.regex`")] = None
    guided_choice: Annotated[Choices | None, about("vLLM's older name for `structured_outputs.choice`")] = None
    guided_grammar: Annotated[Pattern | None, about("vLLM's older name for `structured_outputs.grammar`")] = None


_STRUCTURE_FIELDS = frozenset(StructureFields.model_fields)


def read_structure(body: StructureFields) -> Structure | None:
    """Return the requested structure; None for any text. Raises ApiError if two are requested."""
    if not _STRUCTURE_FIELDS & body.model_fields_set:
        return None
    found = _of_format(body.response_format)
    asked = body.structured_outputs
    if asked is not None:
        found += _stated(
            "structured_outputs.", json=asked.json_, regex=asked.regex, choice=asked.choice, grammar=asked.grammar
        )
        if asked.json_object:
            found.append(Structure("json_schema", ANY_OBJECT, "structured_outputs.json_object"))
    found += _stated(
        "guided_",
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    if len(found) > 1:
        raise invalid(found[1].param, f"`{found[0].param}` and `{found[1].param}` are both given.")
    return found[0] if found else None


def _of_format(asked: ResponseFormat | None) -> list[Structure]:
    if asked is None:
        return []
    if asked.schema_ is not None and asked.json_schema is None and asked.type != "text":
        return [Structure("json_schema", asked.schema_, "response_format.schema")]
    if asked.schema_ is not None:
        raise invalid("response_format.schema", "`schema` needs a JSON type, and no `json_schema` next to it.")
    if (asked.json_schema is not None) != (asked.type == "json_schema"):
        raise invalid("response_format.json_schema", "`json_schema` is only allowed with the type 'json_schema'.")
    if asked.json_schema is not None:
        schema = asked.json_schema.schema_ or ANY_OBJECT
        return [Structure("json_schema", schema, "response_format.json_schema.schema")]
    return [Structure("json_schema", ANY_OBJECT, "response_format")] if asked.type == "json_object" else []


def _stated(prefix: str, **stated: str | list[str] | None) -> Iterator[Structure]:
    for name, value in stated.items():
        if value is not None:
            yield Structure(_KINDS[name], value if isinstance(value, str) else json_text(value), prefix + name)

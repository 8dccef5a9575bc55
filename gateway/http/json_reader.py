"""The one reader of callers' JSON, bounded in bytes, depth and number of values. Nothing else in the gateway decodes
what a caller or a model wrote (`tests/gateway/http/test_one_reader.py`).

Errors name the top-level field in which they occur, found by a bounded scan of the text before them."""

import json
import math
import re
from collections import Counter
from collections.abc import Collection
from typing import Any, TypeVar

import msgspec

from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.lifted import Lifted

# Characters of a caller's field name repeated in an error message.
MAX_FIELD_NAME = 64
# JSON within a string.
MAX_TEXT_BYTES = 2**20
# A field that is decoded separately.
MAX_SCALAR_BYTES = 8 * 1024
# Commas, lists and objects in JSON within a string, counted only above LARGE_BODY_BYTES.
_MAX_TEXT_PARTS = 10_000
# Nesting of lists and objects: far more than any field has, and far less than Python's recursion limit allows, which is
# 500 to 1,000 levels from the deepest stack that reads or writes JSON.
MAX_DEPTH = 256
# Fields of one object; the largest that is known has about fifty.
MAX_FIELDS = 1_000
# Up to this size a document is parsed directly. Long lists and strings of a larger one are extracted first, and it must
# be read in a thread.
LARGE_BODY_BYTES = 16 * 1024
# Strings and brackets visited by the search for the field of an error: bounds its time on hostile bodies.
_SCAN_TOKENS = 10_000
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)|[\[\]{}:,]', re.DOTALL)
_SCAN_BYTES = 2**20
# Digits of an integer. Python rejects more than 4,300.
_DIGITS = 4000
# Characters of a number in a large body; a longer one is read as infinity.
_LONGEST_NUMBER = 100
_INT64 = 2**63
_NO_OBJECT = "The body must be a JSON object."
# The parts of msgspec's messages that name a missing field, and the place of the object that lacks it.
_PLACE = re.compile(r"required field `(\w+)`|at `\$\.([\w.\[\]]+)`")
Struct = TypeVar("Struct", bound=msgspec.Struct)


def shown_name(name: str) -> str:
    """Return a caller's field name as a message or `param` may repeat it."""
    printable = "".join(character if character.isprintable() else "?" for character in name[:MAX_FIELD_NAME])
    return printable + ("…" if len(name) > MAX_FIELD_NAME else "")


def is_unicode(text: str) -> bool:
    """Return whether text can be encoded as UTF-8: JSON escapes can spell lone surrogates, which cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_object(body: bytes, *, token_ids: int = 0) -> dict[str, Any]:
    """Return the JSON object in a body, with at most `token_ids` token ids; a long list of them is a tuple.

    NaN and Infinity pass as floats, for each field's own check to reject. Raises ApiError naming the top-level field of
    the error, if it can be determined."""
    lifted = Lifted(body, token_ids) if len(body) > LARGE_BODY_BYTES else None
    try:
        value = _read(body.decode("utf-8")) if lifted is None else _read_rest(lifted)
    except (ApiError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        refused = _explain(error, body, lifted)  # raised below, not chained to an exception that quotes the body
    else:
        text = body if lifted is None else lifted.text
        is_deep = text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_deep(value)
        if isinstance(value, dict) and not is_deep:
            return value
        refused = _too_deep(text) if is_deep else invalid(None, _NO_OBJECT)
    try:
        raise refused
    finally:
        del refused  # breaks the cycle through its traceback's frame, which holds the body


def read_text(text: str, *, strict: bool = True) -> object:
    """Return the JSON value in a string of a body or a response. Raises ValueError for invalid or too much JSON.

    `strict` rejects control characters and lone surrogates in strings."""
    if len(text) > MAX_TEXT_BYTES or (len(text) > LARGE_BODY_BYTES and sum(map(text.count, ",[{")) > _MAX_TEXT_PARTS):
        raise ValueError("more JSON than is read from a text")
    try:
        return _decode_text(text) if strict else _decode_lenient(text)
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError("not JSON, or nested too deeply") from None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_decode_text = msgspec.json.Decoder().decode
_decode_lenient = json.JSONDecoder(parse_constant=_no_constant, strict=False).decode


def scalars(body: bytes, names: Collection[str]) -> dict[str, str | int | float | bool | None]:
    """Return those of the named top-level fields that are short scalars; none of a body that is invalid."""
    try:
        text = Lifted(body, None).text if len(body) > LARGE_BODY_BYTES else body
        found = {name: raw for name, raw in _raw_fields(text).items() if name in names}
    except (ApiError, ValueError):
        return {}
    return {name: scalar(bytes(raw)) for name, raw in found.items() if _is_scalar(raw)}


def raw_fields(document: bytes) -> dict[str, bytes]:
    """Return the undecoded top-level fields of a document. Raises ValueError without a bounded JSON object."""
    if len(document) > LARGE_BODY_BYTES:
        try:
            Lifted(document, None)
        except ApiError as error:
            raise ValueError(error.message) from None
    return {name: bytes(raw) for name, raw in _raw_fields(document).items()}


def scalar(raw: bytes) -> str | int | float | bool | None:
    """Return the value of an undecoded field; None if it is long, a list or object, or cannot be decoded."""
    try:
        return _decode_scalar(raw) if _is_scalar(raw) else None
    except ValueError:
        return None


def read_struct(body: bytes, kind: type[Struct]) -> Struct:
    """Return the body as a struct whose large parts stay undecoded. Raises ApiError naming the field.

    The caller bounds the number of its items, and reads the body in a thread."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        steps = [step for found in _PLACE.finditer(str(error)) for step in found.groups() if step]
        param = ".".join(reversed(steps)).replace("[", ".[") or None
        refused = invalid(param, f"`{param}` is missing, or not of the right type." if param else _NO_OBJECT)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        refused = invalid(None, "The body is not valid JSON, or nested too deeply.")
    raise refused


def _raw_fields(document: bytes) -> dict[str, msgspec.Raw]:
    try:
        fields: dict[str, msgspec.Raw] = _decode_fields(document)
        return fields
    except RecursionError:
        raise ValueError("nested too deeply") from None


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_scalar = msgspec.json.Decoder(str | int | float | bool | None).decode


def _is_scalar(raw: bytes | msgspec.Raw) -> bool:
    return 0 < len(bytes(raw)) <= MAX_SCALAR_BYTES and bytes(raw).lstrip()[:1] not in (b"[", b"{")


def _read(text: str) -> object:
    try:
        return _decode(text)
    except (json.JSONDecodeError, ApiError):
        raise
    except ValueError:  # an integer of thousands of digits; its field's own check rejects infinity
        return json.loads(text, object_pairs_hook=_no_doubles, parse_int=_whole_number, parse_float=_number)


def _read_rest(lifted: Lifted) -> object:
    lists = lifted.values

    def whole(digits: str) -> object:
        if digits in lists:
            return lists[digits]
        return int(digits) if len(digits) <= _LONGEST_NUMBER else math.inf

    text = lifted.text.decode("utf-8")
    return json.loads(text, object_pairs_hook=_no_doubles, parse_int=whole, parse_float=_short_number)


def _number(digits: str) -> float:
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) < _INT64 else value


def _short_number(digits: str) -> float:
    return _number(digits) if len(digits) <= _LONGEST_NUMBER else math.inf


def _whole_number(digits: str) -> float:
    return int(digits) if len(digits) < _DIGITS else math.inf


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    count = len(pairs)
    if count > MAX_FIELDS:
        raise invalid(None, f"An object in the body has more than {MAX_FIELDS} fields.")
    fields = dict(pairs)
    if len(fields) != count:
        counts = Counter(name for name, _ in pairs)
        doubled = next(name for name, count in counts.items() if count > 1)
        raise invalid(shown_name(doubled), "The field is given twice.")
    names = "\n".join(fields)
    if not (names.isascii() or is_unicode(names)):
        broken = next(name for name in fields if not is_unicode(name))
        raise invalid(shown_name(broken), "The field's name is not valid Unicode.")
    return fields


_decode = json.JSONDecoder(object_pairs_hook=_no_doubles, parse_float=_number).decode


def _explain(error: Exception, body: bytes, lifted: Lifted | None) -> ApiError:
    if lifted is not None:
        body = lifted.text
    match error:
        case ApiError():
            return error
        case UnicodeDecodeError():
            return invalid(_field_of(body[: error.start]), "The body is not valid UTF-8.")
        case json.JSONDecodeError():
            before = error.doc[: error.pos].encode("utf-8", "replace")
            position = error.pos if lifted is None else lifted.position(error.pos)
            return invalid(_field_of(before), f"The body is not valid JSON, at character {position}.")
        case _:
            return _too_deep(body)


def _too_deep(body: bytes) -> ApiError:
    return invalid(_field_of(body), f"The body is nested too deeply: {MAX_DEPTH} levels are allowed.")


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        within = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [inner for each in within for inner in each]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _field_of(before: bytes) -> str | None:
    field, string, depth = None, "", 0
    if len(before) > _SCAN_BYTES:
        return None
    text = before.decode("utf-8", "replace")
    for count, token in enumerate(_TOKEN.finditer(text)):
        mark = token[0]
        if count >= _SCAN_TOKENS:
            return None
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                break
        elif mark in "]}":
            depth -= 1
        elif depth == 1 and mark == ":":
            field = string
        elif depth == 1 and mark == ",":
            field = None
        string = mark.strip('"')
    return None if field is None else shown_name(field)

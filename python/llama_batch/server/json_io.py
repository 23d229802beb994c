"""JSON in and out: strict where it comes in, and what JSON can hold where it goes out."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from llama_batch.server.failures import HttpError

_EXACT = 2.0**53
_MAX_DIGITS = 310  # of the largest double
_MAX_DEPTH = 128  # what works on a body is recursive here and there
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def loads(body: bytes) -> dict[str, Any]:
    """Read the body of a request.

    Args:
        body: UTF-8.

    Returns:
        The object.

    Raises:
        HttpError: it is no JSON object, or holds NaN, a number beyond a double, or half a character.

    Example:
        >>> loads(b'{"prompt": "Hello"}')
        {'prompt': 'Hello'}
    """
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise HttpError(400, f"the body is not UTF-8: byte {error.start}", code="invalid_json") from None
    except UnicodeEncodeError:
        raise HttpError(
            400, "the body holds a lone surrogate, which is half a character", code="invalid_json"
        ) from None
    except RecursionError:
        raise HttpError(400, "the body is nested too deeply", code="invalid_json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise HttpError(400, f"the body is not JSON: {error.msg} ({where})", code="invalid_json") from None
    except ValueError as error:
        raise HttpError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise HttpError(400, "the body must be a JSON object", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH and _is_deeper(value, _MAX_DEPTH):
        raise HttpError(400, f"the body is nested more than {_MAX_DEPTH} deep", code="invalid_json")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects hold each other more often than that."""
    level = [value]
    for _ in range(limit):
        inner = [each for box in level for each in (box.values() if isinstance(box, dict) else box)]
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def dumps(value: Any) -> bytes:
    r"""Write an answer.

    Args:
        value: what JSON can hold.

    Returns:
        UTF-8, without spaces.

    Example:
        >>> dumps({"text": "é"})
        b'{"text":"\xc3\xa9"}'
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number is too large")
    return int(text)


def _finite(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    # JSON does not tell 5.0 from 5, and some clients write all numbers so.
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number

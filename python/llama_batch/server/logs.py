"""The log: one line of JSON, or of text, for each thing; what was asked is not in it unless the operator wants it."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal

LOGGER = logging.getLogger("llama_batch.server")

LogFormat = Literal["auto", "json", "text"]


class JsonLines(logging.Formatter):
    """Each record as an object: time, level, logger, message, and the fields that it carries."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback where there is one."""
        fields = " ".join(f"{name}={_shown(value)}" for name, value in getattr(record, "fields", {}).items())
        line = f"{_time(record.created)} {record.levelname.lower()} {_escaped(record.getMessage())} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(1e3 * (seconds % 1)):03d}Z"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, str | list | dict) else str(value)


def _escaped(text: str) -> str:
    """A message in one line, whatever a client put into it."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def set_up(log_format: LogFormat, level: str = "info") -> None:
    """Send what the server and its parts log to standard error.

    Args:
        log_format: "json", "text", or "auto": text where somebody looks at it, at a terminal.
        level: the least of it, in `logging`'s words.
    """
    handler = logging.StreamHandler(sys.stderr)
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextLines() if is_text else JsonLines())
    for name in ("llama_batch", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # llama.cpp tells much; its warnings matter.
    logging.getLogger("llama_batch.llama_cpp").setLevel(max(logging.WARNING, logging.getLogger("llama_batch").level))
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger("llama_batch").level))


def tell(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log one thing.

    Args:
        message: what happened.
        level: of `logging`.
        fields: what it happened to.
    """
    LOGGER.log(level, message, extra={"fields": fields})

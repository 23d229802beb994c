"""What operators ask: health, models, properties, slots, metrics."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from llama_batch import openai_shapes as shapes
from llama_batch import prometheus
from llama_batch.errors import LlamaBatchError
from llama_batch.server.failures import HttpError

if TYPE_CHECKING:
    from llama_batch.server.service import Call, Service


async def health(call: Call) -> None:
    """Whether requests are answered: 200, or 503 while the model loads and while the server shuts down."""
    service = call.service
    state = "draining" if service.is_draining else service.engine.state
    if state == "ready":
        await call.answer({"status": "ok"})
        return
    words = {
        "loading": "Loading model",
        "draining": "Shutting down",
        "closed": "Shutting down",
        "failed": "The model could not be loaded",
    }
    error = HttpError(503, words[state], code=state, headers={"retry-after": "1"})
    await call.answer({"status": state, **error.body()}, error.status, error.headers)


async def models(call: Call) -> dict[str, Any]:
    """The model that is served."""
    return {"object": "list", "data": [_model(call.service)]}


async def one_model(call: Call) -> dict[str, Any]:
    """The model, by its name."""
    asked = call.scope["path_params"]["model"]
    if asked != call.service.model_name:
        message = f"there is no model of this name; there is {call.service.model_name!r}"
        raise HttpError(404, message, code="model_not_found", param="model")
    return _model(call.service)


def _model(service: Service) -> dict[str, Any]:
    meta: dict[str, Any] | None = None
    try:
        model = service.engine.model
        meta = {
            "n_vocab": model.n_vocab,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "size": model.size_bytes,
        }
    except LlamaBatchError:
        pass  # it is loading: its name is known all the same
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "llama-batch",
        "max_model_len": service.engine.stats().kv_cells_total or None,
        "meta": meta,
    }


async def props(call: Call) -> dict[str, Any]:
    """What llama-server tells of itself, as far as it is so here."""
    service, model, stats = call.service, call.service.engine.model, call.service.engine.stats()
    return {
        "default_generation_settings": {"n_ctx": stats.kv_cells_total, "params": _defaults()},
        "total_slots": stats.n_parallel,
        "model_alias": service.model_name,
        "model_path": service.engine.name,
        "chat_template": model.chat_template or "",
        "bos_token": _special(model, model.bos_token),
        "eos_token": _special(model, model.eos_token),
        "build_info": shapes.system_fingerprint(),
        "modalities": {"vision": False, "audio": False},
        "is_sleeping": False,
    }


def _special(model: Any, token: int | None) -> str:
    return "" if token is None else model.detokenize([token], special=True)


@cache
def _defaults() -> dict[str, Any]:
    """What the table of options says; an engine may have others."""
    from llama_batch._options import REQUEST_OPTIONS, START_OPTIONS

    names = [spec.name for spec in REQUEST_OPTIONS.values()]
    found = {name: START_OPTIONS[name].default for name in names if name in START_OPTIONS}
    return {name: value for name, value in found.items() if value is not None}


async def slots(call: Call) -> list[dict[str, Any]]:
    """The places of the running set, as llama-server tells of them; which request has which, the engine does not tell.

    Requests of this server come first, oldest first.
    """
    stats = call.service.engine.stats()
    query = parse_qs(call.scope.get("query_string", b"").decode("latin-1"))
    if query.get("fail_on_no_slot", ["0"])[0] not in {"", "0"} and stats.idle_slots == 0:
        raise HttpError(503, "no slot is free", code="no_slot", headers={"retry-after": "1"})
    running = sorted(call.service.running)
    rows = []
    for place in range(stats.n_parallel):
        busy = place < stats.active_slots
        row: dict[str, Any] = {"id": place, "n_ctx": stats.kv_cells_total, "speculative": False, "is_processing": busy}
        if busy and place < len(running):
            row["id_task"] = running[place]
        rows.append(row)
    return rows


async def slot_action(_: Call) -> None:
    """Saving a slot to a file, and so on."""
    raise HttpError(501, "slots are not saved; name a conversation by `session` instead", code="not_supported")


async def not_here(call: Call) -> None:
    """A route of llama-server that is not served."""
    raise HttpError(501, f"{call.scope['path']} is not served here", code="not_supported")


async def metrics(call: Call) -> None:
    """Figures for Prometheus."""
    query = parse_qs(call.scope.get("query_string", b"").decode("latin-1"))
    compat: Any = query.get("compat", [None])[0]
    text = prometheus.render([call.service.engine], model_name=call.service.model_name, compat=compat)
    headers = {"process-start-time-unix": str(call.service.started_at)}
    await call.send_bytes(text.encode(), prometheus.CONTENT_TYPE, headers=headers)

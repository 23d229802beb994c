"""llama-cpp-python's chat formats, as templates: for models whose files have none, or another one than is wanted."""

from __future__ import annotations

from typing import Any

from llama_batch.errors import OptionError

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Where the system's message stands in the first one of the user.
_SYSTEM = (
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% endif %}{% endfor %}"
)
_LLAMA_2 = (
    _SYSTEM + "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>"
    "{% elif m.role != 'system' %}{% if not loop.first and m.role == 'user' and ns.system == 'told' %}<s>{% endif %}"
    "[INST] {% if ns.system and ns.system != 'told' %}<<SYS>>\n{{ ns.system }}\n<</SYS>>\n\n{% endif %}"
    "{% set ns.system = 'told' %}{{ m.content }} [/INST]{% endif %}{% endfor %}"
)
_LLAMA_3 = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_GEMMA = (
    _SYSTEM + "{% for m in messages %}{% if m.role != 'system' %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{% if ns.system %}{{ ns.system }}\n\n"
    "{% set ns.system = '' %}{% endif %}{{ m.content }}<end_of_turn>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_MISTRAL = (
    _SYSTEM + "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>{% elif m.role != 'system' %}"
    "[INST] {% if ns.system %}{{ ns.system }}\n\n{% set ns.system = '' %}{% endif %}{{ m.content }} [/INST]"
    "{% endif %}{% endfor %}"
)
_ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_ALPACA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'assistant' %}"
    "### Response:\n{{ m.content }}\n\n{% else %}### Instruction:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)
_VICUNA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} {% elif m.role == 'assistant' %}"
    "ASSISTANT: {{ m.content }}</s>{% else %}USER: {{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

CHAT_FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chatml": (_CHATML, ("<|im_end|>",)),
    "chatml-function-calling": (_CHATML, ("<|im_end|>",)),
    "llama-2": (_LLAMA_2, ("</s>",)),
    "llama-3": (_LLAMA_3, ("<|eot_id|>",)),
    "gemma": (_GEMMA, ("<end_of_turn>",)),
    "mistral-instruct": (_MISTRAL, ("</s>",)),
    "zephyr": (_ZEPHYR, ("</s>",)),
    "alpaca": (_ALPACA, ("###",)),
    "vicuna": (_VICUNA, ("USER:",)),
}
"""By name: a template, and texts that end an answer where the model has no token for it."""


def chat_format(name: Any) -> tuple[str, tuple[str, ...]]:
    """A chat format.

    Args:
        name: its name.

    Returns:
        The template, and the texts that end an answer.

    Raises:
        OptionError: there is no such format.

    Example:
        >>> chat_format("chatml")[1]
        ('<|im_end|>',)
    """
    made = CHAT_FORMATS.get(name) if isinstance(name, str) else None
    if made is None:
        there = ", ".join(CHAT_FORMATS)
        raise OptionError(
            f"Llama: chat_format={name!r} is not supported: leave it out for the model's own template, take one of "
            f"{there}, or `chat_template=` of `Engine.chat`"
        )
    return made

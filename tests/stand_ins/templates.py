"""Chat templates of the kinds that models have, written for tests: with tools, with thoughts, and hostile ones."""

from __future__ import annotations

TURNS = """
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
"""

TOOLS = (
    """
{%- if tools %}
{{- '<|im_start|>system\\nYou may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nCall one within <tool_call></tool_call> tags:\\n<tool_call>\\n' }}
{{- '{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}"""
    + TURNS
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Tells of tools as Hermes and Qwen do."""

THOUGHTS = """
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- set thought = '' %}
{%- if message.role == 'assistant' %}
{%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
"""Lets a model think aloud, as Qwen 3 does."""

ENDLESS = "{% for a in range(100000) %}" * 3 + "{% endfor %}" * 3
GREEDY = (
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"
)
DEEP = "{{ " + "(" * 200_000 + "1" + ")" * 200_000 + " }}"

"""The style sheet of reports. Colours are told apart by people who see them differently too, on either ground."""

from __future__ import annotations

__all__ = ["STYLE"]

_LIGHT = ("#2a6fdb", "#d9541e", "#12875f", "#8a3ffc", "#b8860b", "#c2185b", "#0b7285", "#5f6b7a")
_DARK = ("#6ea8ff", "#ff9466", "#45cf9f", "#c09bff", "#e5c04f", "#ff86b3", "#52cfe3", "#aab4c2")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours))


_INK = f"""
:root {{ --ground: #fcfcfb; --card: #fff; --ink: #1c1c1a; --soft: #5d5d58; --rule: #e4e3de; {_palette(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ground: #161615; --card: #1f1f1d; --ink: #ecebe6; --soft: #a5a49d; --rule: #383733; {_palette(_DARK)} }}
}}
"""

_SERIES = "".join(
    f"""
svg .line.c{index} {{ stroke: var(--c{index}) }}
svg .dot.c{index}, svg .area.c{index} {{ fill: var(--c{index}) }}
.k{index} {{ background: var(--c{index}) }}"""
    for index in range(len(_LIGHT))
)

_PAGE = """
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px }
h1 { font-size: 24px; margin: 0 0 2px; overflow-wrap: anywhere }
h2 { font-size: 17px; margin: 34px 0 8px }
.sub { color: var(--soft); margin: 0 0 14px; overflow-wrap: anywhere }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; margin: 18px 0 }
.tile, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px }
.tile { padding: 10px 14px }
.tile .value { font-size: 21px; font-weight: 600; white-space: nowrap }
.name { color: var(--soft); font-size: 13px }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 12px }
figure { margin: 0; padding: 12px 14px 6px }
figcaption { font-weight: 600; margin-bottom: 4px }
svg { display: block; width: 100%; height: auto }
svg .grid { stroke: var(--rule); stroke-width: 1 }
svg .tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums }
svg .area { fill-opacity: .35 }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round }
svg .dot { stroke: var(--card); stroke-width: 1.5 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 6px 0 10px; padding: 0 }
.key { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin-right: 7px; vertical-align: middle }
figure .legend { margin: 0 0 6px; font-size: 13px; color: var(--soft) }
.notes { margin: 14px 0; padding: 10px 16px 10px 32px; border-left: 3px solid var(--c4); background: var(--card);
  font-size: 14px }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 8px; background: var(--card) }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { padding: 6px 12px; text-align: right; white-space: nowrap; border-top: 1px solid var(--rule) }
thead th { border-top: 0; color: var(--soft); font-weight: 600 }
th:first-child { text-align: left; font-weight: 500 }
.words td:last-child, .words th:last-child { text-align: left; white-space: normal; overflow-wrap: anywhere }
details { margin: 6px 0 }
summary { cursor: pointer; color: var(--soft) }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px; overflow-x: auto;
  font-size: 13px }
"""

STYLE = _INK + _SERIES + _PAGE

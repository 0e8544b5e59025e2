"""A grouped bar chart as SVG text: enough for one picture in the documentation, without a plotting library."""

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#1f6feb", "#8c959f", "#d4a72c", "#57606a")
BAR, GAP, HEIGHT, LEFT, TOP = 28, 36, 220, 20, 48


def bar_chart(title: str, groups: Sequence[str], series: Mapping[str, Mapping[str, float]]) -> str:
    """One group of bars per entry of `groups`, one colour per series; each bar carries its value."""
    largest = max((values.get(group, 0.0) for values in series.values() for group in groups), default=1.0) or 1.0
    group_width = BAR * len(series) + GAP
    width = LEFT * 2 + group_width * len(groups)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + TOP + 40}" font-family="sans-serif" '
        'font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">{escape(title)}</text>',
    ]
    for index, name in enumerate(series):
        x = LEFT + index * 110
        parts.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="33">{escape(name)}</text>')
    for place, group in enumerate(groups):
        start = LEFT + place * group_width
        for index, values in enumerate(series.values()):
            value = values.get(group, 0.0)
            height = HEIGHT * value / largest
            x, y = start + index * BAR, TOP + HEIGHT - height
            colour = COLOURS[index % len(COLOURS)]
            parts.append(
                f'<rect x="{x}" y="{y:.1f}" width="{BAR - 4}" height="{height:.1f}" fill="{colour}"/>'
                f'<text x="{x + BAR / 2 - 2}" y="{y - 3:.1f}" text-anchor="middle">{value:.0f}</text>'
            )
        centre = start + BAR * len(series) / 2
        parts.append(f'<text x="{centre}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{escape(group)}</text>')
    return "\n".join([*parts, "</svg>", ""])

"""Draws loss curves and their differences as an SVG. Standard library only."""

import math

WIDTH, LEFT, RIGHT = 900, 70, 20
LOSS_TOP, LOSS_HEIGHT = 40, 260
DIFF_TOP, DIFF_HEIGHT = 360, 150
HEIGHT = 560
STATIC, ELASTIC, SWITCH = "#9aa5b1", "#c2410c", "#2563eb"


class Panel:
    """A plot area: data coordinates to pixels."""

    def __init__(self, top, height, steps, low, high):
        self.top, self.height, self.steps, self.low, self.high = top, height, steps, low, high

    def x(self, step):
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, self.steps - 1)

    def y(self, value):
        return self.top + self.height * (self.high - value) / (self.high - self.low)

    def path(self, values, colour, width, dash=""):
        points = " ".join(f"{self.x(i + 1):.1f},{self.y(v):.1f}" for i, v in enumerate(values))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'

    def frame(self, title, ticks):
        right = WIDTH - RIGHT
        parts = [text(LEFT, self.top - 10, title, size=13)]
        for value, label in ticks:
            y = self.y(value)
            parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e5e7eb"/>')
            parts.append(text(LEFT - 8, y + 4, label, anchor="end"))
        return "\n".join(parts)


def text(x, y, what, size=11, anchor="start", colour="#374151"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{what}</text>'


def draw(static, elastic, differences, bound, switches):
    """`static`: {SPEC: losses}; `differences` of `elastic` from a static run; `switches`: (last step before, SPEC)."""
    steps = len(elastic)
    everything = [loss for curve in static.values() for loss in curve] + elastic
    low, high = math.floor(min(everything) * 2) / 2, math.ceil(max(everything) * 2) / 2
    loss = Panel(LOSS_TOP, LOSS_HEIGHT, steps, low, high)
    floor = 1e-9
    logs = [math.log10(max(d, floor)) for d in differences]
    diff = Panel(DIFF_TOP, DIFF_HEIGHT, steps, math.log10(floor), math.ceil(max(max(logs), math.log10(bound))))
    ticks = [(low + i * 0.5, f"{low + i * 0.5:.1f}") for i in range(round((high - low) * 2) + 1)]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             loss.frame(f"training loss: {len(static)} static runs (grey) and the run with all switches (orange, dashed)",
                        ticks),
             diff.frame("relative difference, elastic from static, by step; dotted: allowed",
                        [(e, f"1e{e}") for e in range(round(diff.low), round(diff.high) + 1)])]
    for number, (step, _) in enumerate(switches, 1):
        x = loss.x(step + 0.5)
        parts.append(f'<line x1="{x:.1f}" y1="{LOSS_TOP}" x2="{x:.1f}" y2="{DIFF_TOP + DIFF_HEIGHT}" stroke="{SWITCH}" '
                     'stroke-width="0.7" stroke-dasharray="2 3"/>')
        parts.append(text(x, LOSS_TOP + LOSS_HEIGHT + 16, str(number), anchor="middle", colour=SWITCH))
    parts += [loss.path(curve, STATIC, 3) for curve in static.values()]
    parts.append(loss.path(elastic, ELASTIC, 1.6, dash="6 3"))
    parts.append(diff.path([math.log10(bound)] * steps, STATIC, 1.2, dash="2 3"))
    parts.append(diff.path(logs, ELASTIC, 1.4))
    parts += [text(loss.x(step), HEIGHT - 25, str(step), anchor="middle") for step in range(1, steps + 1) if step % 8 == 0]
    parts.append(text(LEFT, HEIGHT - 6, "step; blue: the step before each switch, by number"))
    return "\n".join(parts + ["</svg>"]) + "\n"

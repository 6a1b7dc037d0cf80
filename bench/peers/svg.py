"""Line plots in SVG: panels side by side, one legend, axes with units. Text stays text, so that a diff can be read."""
import math
from xml.sax.saxutils import escape

# Told apart by the colour-blind as well; each series has a marker of its own, too.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")
PANEL_WIDTH, PANEL_HEIGHT = 300, 210
LEFT, TOP, RIGHT, BOTTOM = 62, 34, 12, 46
COLUMNS = 3


class Panel:
    """series: {name: [(x, y)]}; x are numbers (spread by their logarithm) or words, y is logarithmic with log_y."""

    def __init__(self, title, axes, series, log_y=False):
        self.title = title
        self.x_title, self.y_title = axes
        self.series = series
        self.log_y = log_y
        self.xs = []
        for points in series.values():
            self.xs += [x for x, _ in points if x not in self.xs]
        if all(isinstance(x, (int, float)) for x in self.xs):
            self.xs.sort()
        self.ys = [y for points in series.values() for _, y in points if y > 0]


def short(value):
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def linear_ticks(top):
    """From 0 to at least `top` in four to eight round steps."""
    power = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1
    step = next(power * f for f in (1, 2, 5, 10) if top / (power * f) <= 8)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low, high):
    """Powers of ten around both; with 2 and 5 between where these are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(exponents) <= 3 else (1,)
    ticks = [f * 10.0 ** e for e in exponents for f in factors]
    first = max((t for t in ticks if t <= low), default=ticks[0])
    last = min((t for t in ticks if t >= high), default=ticks[-1])
    return [t for t in ticks if first <= t <= last]


class Canvas:
    def __init__(self, panel, left, top):
        self.panel = panel
        self.left, self.top = left + LEFT, top + TOP
        self.width, self.height = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM
        self.ticks = (log_ticks(min(panel.ys), max(panel.ys)) if panel.log_y else linear_ticks(max(panel.ys)))

    # Values of x are evenly spaced: contexts and loads double, and words have no distance.
    def x(self, value):
        steps = max(1, len(self.panel.xs) - 1)
        inset = 14
        return self.left + inset + self.panel.xs.index(value) * (self.width - 2 * inset) / steps

    def y(self, value):
        low, high = self.ticks[0], self.ticks[-1]
        if self.panel.log_y:
            share = (math.log(value) - math.log(low)) / max(1e-9, math.log(high) - math.log(low))
        else:
            share = value / high
        return self.top + self.height * (1 - share)

    def axes(self):
        p = self.panel
        middle, bottom = self.left + self.width / 2, self.top + self.height
        yield text(middle, self.top - 12, p.title, "middle", bold=True)
        for tick in self.ticks:
            y = self.y(tick)
            yield f'<path d="M{self.left} {y:.1f}h{self.width}" stroke="#ddd"/>'
            yield text(self.left - 5, y + 4, short(tick), "end")
        for value in p.xs:
            yield text(self.x(value), bottom + 16, f"{value:,}" if isinstance(value, (int, float)) else value, "middle")
        yield f'<path d="M{self.left} {self.top}v{self.height}h{self.width}" stroke="#333" fill="none"/>'
        yield text(middle, bottom + 34, p.x_title, "middle")
        x, y = self.left - 46, self.top + self.height / 2
        yield f'<g transform="translate({x} {y}) rotate(-90)">{text(0, 0, p.y_title, "middle")}</g>'

    def lines(self, names):
        for name, points in self.panel.series.items():
            number = names.index(name)
            places = [(self.x(x), self.y(y)) for x, y in sorted(points, key=lambda p: self.panel.xs.index(p[0])) if y > 0]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            colour = COLOURS[number % len(COLOURS)]
            if path:
                yield f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>'
            for x, y in places:
                yield marker(number, x, y)


def text(x, y, words, anchor="start", bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(str(words))}</text>'


def marker(number, x, y):
    colour = COLOURS[number % len(COLOURS)]
    shapes = (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
              f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{colour}"/>',
              f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z" fill="{colour}"/>',
              f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" fill="{colour}"/>')
    return shapes[number % len(shapes)]


def figure(panels, names):
    """The SVG of the panels that have points; `names` are the series in the order of their colours. None without any."""
    panels = [p for p in panels if p.ys]
    if not panels:
        return None
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    shown = [n for n in names if any(p.series.get(n) for p in panels)]
    width, height = max(columns, 2) * PANEL_WIDTH, rows * PANEL_HEIGHT + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="11" fill="#222">', f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for number, name in enumerate(shown):
        x = 20 + number * 135
        parts += [marker(names.index(name), x, 15), text(x + 10, 19, name)]
    for number, panel in enumerate(panels):
        canvas = Canvas(panel, number % columns * PANEL_WIDTH, number // columns * PANEL_HEIGHT + 30)
        parts += [*canvas.axes(), *canvas.lines(names)]
    return "\n".join([*parts, "</svg>", ""])

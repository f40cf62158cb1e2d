"""Reads back from a matplotlib figure what it shows, as plain data."""

import datetime
import math
import re

MAX_POINTS = 200_000  # of one figure; more is a picture, not a chart

_UNIT = re.compile(r".*[(\[]([^()\[\]]+)[)\]]\s*$", re.S)


def extract(figure):
    """The chart of a figure, {} for a blank one."""
    charts = [chart for chart in map(_axes_chart, figure.get_axes()) if chart]
    if len(charts) < 2:
        return charts[0] if charts else {}
    title = getattr(figure, "_suptitle", None)
    return {
        "type": "superchart",
        "title": (title.get_text() if title else None) or None,
        "elements": charts,
    }


def _axes_chart(ax):
    artists = [*ax.lines, *ax.patches, *ax.collections, *ax.images, *ax.tables]
    if not artists:
        return None
    kind = _kind(ax, artists)
    chart = {"type": kind, "title": ax.get_title() or None}
    if kind in ("line", "scatter", "bar", "box_and_whisker"):
        for side in "xy":
            label = getattr(ax, f"get_{side}label")()
            unit = _UNIT.match(label)
            chart[side + "_label"] = label or None
            chart[side + "_unit"] = unit.group(1).strip() if unit else None
    if kind in ("line", "scatter"):
        for side in "xy":
            chart.update(_axis(side, getattr(ax, side + "axis")))
    chart["elements"] = _ELEMENTS[kind](ax)
    return chart


def _kind(ax, artists):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    def only(*types):
        return all(isinstance(artist, types) for artist in artists)

    if only(Line2D):
        return "box_and_whisker" if _boxes(ax) else "line"
    if only(Line2D, PathPatch):
        return "box_and_whisker"
    artists = [artist for artist in artists if not isinstance(artist, Line2D)]
    for kind, cls in (("scatter", PathCollection), ("pie", Wedge), ("bar", Rectangle)):
        if only(cls):
            return kind
    return "unknown"


# Axes and values


def _scale(axis):
    """The kind of the values along an axis."""
    # Ticks that were set by hand leave the converter as the only witness.
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    witnesses = type(axis.get_major_locator()).__name__, type(converter).__name__
    if any(name.startswith("StrCategory") for name in witnesses):
        return "categorical"
    if any("Date" in name for name in witnesses):
        return "datetime"
    return axis.get_scale()


def _categories(axis):
    """Names by position of a categorical axis."""
    mapping = getattr(axis.units, "_mapping", None) or {}
    return {position: name for name, position in mapping.items()}


def _axis(side, axis):
    scale = _scale(axis)
    labels = [label.get_text() for label in axis.get_ticklabels()]
    ticks = axis.get_ticklocs()
    read = _reader(axis)
    if scale == "datetime" and type(axis.get_major_locator()).__module__.startswith("pandas"):
        values = labels  # periods: positions are numbers of its own
    else:
        values = [read(tick) for tick in ticks]
    return {side + "_ticks": values, side + "_tick_labels": labels, side + "_scale": scale}


def _reader(axis):
    """A function from a value along an axis to plain data."""
    scale = _scale(axis)
    if scale == "categorical":
        names = _categories(axis)
        return lambda value: names.get(value, _plain(value))
    if scale == "datetime":
        from matplotlib.dates import num2date

        def read(value):
            plain = _plain(value)
            return num2date(plain).isoformat() if isinstance(plain, (int, float)) else plain

        return read
    return _plain


def _plain(value):
    if hasattr(value, "to_timestamp"):  # a pandas period
        value = value.to_timestamp()
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return _plain(value.astype("datetime64[us]").item())
    if hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    number = float(value)
    return float(f"{number:.8g}") if math.isfinite(number) else None


def _label(artist):
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


# Elements by type


def _points(ax, xs, ys):
    if len(xs) > MAX_POINTS:
        raise ValueError("too many points")
    read_x, read_y = _reader(ax.xaxis), _reader(ax.yaxis)
    return [[read_x(x), read_y(y)] for x, y in zip(xs, ys)]


def _lines(ax):
    return [
        {
            "label": _label(line) or f"Line {number}",
            "points": _points(ax, line.get_xdata(orig=True), line.get_ydata(orig=True)),
        }
        for number, line in enumerate(ax.lines, 1)
        if not _rules(line)
    ]


def _rules(line):
    """Whether a line is one of axhline, axvline or the like, by E2B's rule: two
    points along an axis are no series."""
    xs, ys = line.get_xdata(), line.get_ydata()
    return len(xs) == len(ys) == 2 and bool(xs[0] == xs[1] or ys[0] == ys[1])


def _scatters(ax):
    elements = []
    for number, dots in enumerate(ax.collections, 1):
        offsets = dots.get_offsets()
        points = _points(ax, [x for x, _ in offsets], [y for _, y in offsets])
        elements.append({"label": _label(dots) or f"Scatter {number}", "points": points})
    return elements


def _tick_name(axis):
    """A function from a position to the name of the tick there, where ticks
    have names, or the number."""
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    named = isinstance(axis.get_major_formatter(), (FixedFormatter, FuncFormatter))
    if not named and _scale(axis) != "categorical":
        read = _reader(axis)
        return lambda position: str(read(position))
    ticks = [
        (place, label.get_text())
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels())
        if label.get_text()
    ]

    def name(position):
        if not ticks:
            return str(_plain(position))
        return min(ticks, key=lambda tick: abs(tick[0] - position))[1]

    return name


def _bars(ax):
    from matplotlib.container import BarContainer

    elements = []
    for group in ax.containers:
        if not isinstance(group, BarContainer):
            continue
        across = getattr(group, "orientation", None) == "horizontal"
        name = _tick_name(ax.yaxis if across else ax.xaxis)
        for bar in group.patches:
            if across:
                middle, value = bar.get_y() + bar.get_height() / 2, bar.get_width()
            else:
                middle, value = bar.get_x() + bar.get_width() / 2, bar.get_height()
            elements.append({"label": name(middle), "group": _label(group), "value": _plain(value)})
    return elements


def _wedges(ax):
    return [
        {
            "label": _label(wedge),
            "angle": _plain(abs(wedge.theta2 - wedge.theta1)),
            "radius": _plain(wedge.r),
        }
        for wedge in ax.patches
    ]


def _boxes(ax):
    lines = [(_floats(line.get_xdata(orig=False)), _floats(line.get_ydata(orig=False))) for line in ax.lines]
    sideways = [(ys, xs) for xs, ys in lines]
    elements = []
    for xs, ys in _outlines(ax, lines):
        element = _box(xs, ys, lines, _tick_name(ax.xaxis)) or _box(
            ys, xs, sideways, _tick_name(ax.yaxis)
        )
        if element:
            elements.append(element)
    return elements


def _outlines(ax, lines):
    """The corners of what may be boxes: patches, or closed lines whose first
    side runs along an axis."""
    outlines = []
    for patch in ax.patches:
        corners = patch.get_path().vertices
        outlines.append((_floats(corners[:, 0]), _floats(corners[:, 1])))
    for xs, ys in lines:
        closed = len(xs) in (5, 11) and (xs[0], ys[0]) == (xs[-1], ys[-1])
        if closed and (xs[0] == xs[1]) != (ys[0] == ys[1]):
            outlines.append((xs, ys))
    for xs, ys in outlines:
        if len(xs) >= 11:  # a notch, which may reach beyond the box
            xs, ys = ([values[i] for i in (0, 1, 5, 6)] for values in (xs, ys))
        yield xs, ys


def _floats(values):
    return [float(v) for v in values]


def _box(xs, ys, lines, name):
    """A box that stands on the x axis, from its corners and the lines that
    were drawn with it; None if it lies."""
    left, right, first, third = min(xs), max(xs), min(ys), max(ys)
    middle, slack = (left + right) / 2, (right - left) * 1e-6
    ends, medians, outliers = [], [], []
    for line_xs, line_ys in lines:
        if not line_xs or min(line_xs) < left - slack or max(line_xs) > right + slack:
            continue
        central = all(abs(x - middle) <= slack for x in line_xs)
        crosses = first < third and {first, third} == set(line_ys)  # the median of a lying box
        if central and len(line_ys) == 2 and {first, third} & set(line_ys) and not crosses:
            ends.extend(line_ys)
        elif len(line_ys) == 2 and line_ys[0] == line_ys[1] and first <= line_ys[0] <= third:
            inside = first < line_ys[0] < third
            medians.append((inside, abs(line_xs[1] - line_xs[0]), line_ys[0]))
        elif central:
            outliers.extend(y for y in line_ys if y < first or y > third)
    if not ends or not medians:
        return None
    return {
        "label": name(middle),
        "min": _plain(min(ends)),
        "first_quartile": _plain(first),
        "median": _plain(max(medians)[2]),
        "third_quartile": _plain(third),
        "max": _plain(max(ends)),
        "outliers": [_plain(y) for y in outliers],
    }


_ELEMENTS = {
    "line": _lines,
    "scatter": _scatters,
    "bar": _bars,
    "pie": _wedges,
    "box_and_whisker": _boxes,
    "unknown": lambda ax: [],
}

"""The parts that Cay adds to an IPython kernel.

install() teaches the shell our result types. prepare(), restore_env(), warm()
and rehearse() are called by the interpreter server in silent executions. Nothing here
appears in the user's namespace, and no failure here fails the user's code.
"""

import base64
import contextlib
import datetime
import json
import math
import os
import random
import sys

MAX_DEPTH = 100
MAX_VALUES = 2_000_000  # of one data frame or JSON result

_saved_env = {}


def prepare(text):
    """Applies the sandbox's environment, entropy and one call's environment."""
    order = json.loads(text)
    for name in order.get("unset") or ():
        os.environ.pop(name, None)
    for name, value in (order.get("set") or {}).items():
        _set(name, value)
    if order.get("entropy"):
        reseed(base64.b64decode(order["entropy"]))
    if order.get("stir"):
        stir(base64.b64decode(order["stir"]))
    for name, value in (order.get("call") or {}).items():
        _saved_env.setdefault(name, os.environ.get(name))
        _set(name, value)


def restore_env():
    """Undoes what prepare did for one call."""
    while _saved_env:
        name, value = _saved_env.popitem()
        if value is None:
            os.environ.pop(name, None)
        else:
            _set(name, value)


def _set(name, value):
    try:
        os.environ[name] = value
    except (ValueError, OSError):
        pass  # a name or value that no environment can hold


def reseed(entropy):
    """Makes this process draw other random numbers than its twins."""
    random.seed(entropy)
    stir(entropy)
    if "numpy.random" in sys.modules:
        words = [int.from_bytes(entropy[i : i + 4], "big") for i in range(0, len(entropy), 4)]
        sys.modules["numpy.random"].seed(words)


def stir(entropy):
    """Has OpenSSL draw other numbers: no program can have given it a seed."""
    try:
        import _ssl

        _ssl.RAND_add(entropy, float(len(entropy)))
    except ImportError:
        pass


def warm(text):
    """Imports a part of what most code imports, so that a snapshot holds it."""
    try:
        (_warm_numpy, _warm_pandas, _warm_matplotlib)[int(text)]()
    except Exception:
        pass


def _warm_numpy():
    import numpy  # noqa: F401


def _warm_pandas():
    import pandas

    repr(pandas.DataFrame({"a": [1]}))


def _warm_matplotlib():
    import io

    import matplotlib.font_manager
    import matplotlib.pyplot as plt

    _add_font(matplotlib)
    figure = plt.figure()
    figure.add_subplot().plot([1, 2], [1, 2])
    figure.savefig(io.BytesIO(), format="png")
    plt.close(figure)


def rehearse():
    """Goes the way of a first execution of "1" but for its names, its count and
    its history: the memory that it touches is there when a client's comes."""
    from IPython import get_ipython

    shell = get_ipython()
    try:
        shell.run_cell("None", store_history=False, silent=True)
        shell.display_pub.publish(*shell.display_formatter.format(1))
    except Exception:  # a template changed the shell
        pass


def _add_font(matplotlib):
    """Lets labels hold Chinese, Japanese and Korean where a font is there and no
    setting names others."""
    font = "Noto Sans CJK JP"
    plain = matplotlib.rcParams["font.family"] == ["sans-serif"]
    if plain and any(f.name == font for f in matplotlib.font_manager.fontManager.ttflist):
        matplotlib.rcParams["font.family"] = ["sans-serif", font]


def install(shell):
    """Teaches the shell to show data frames, charts, lists, dicts, images."""
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class DataFormatter(BaseFormatter):
        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        _return_type = dict

    class ChartFormatter(BaseFormatter):
        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        _return_type = dict

        def __call__(self, obj):
            # Not a registered printer: the inline backend removes those of
            # figures from every formatter.
            figures = sys.modules.get("matplotlib.figure")
            if figures is not None and isinstance(obj, figures.Figure):
                return figure_chart(obj)
            return super().__call__(obj)

    formatters = shell.display_formatter.formatters
    data = DataFormatter(parent=shell.display_formatter)
    # pandas 3 says that its classes live in "pandas".
    data.for_type_by_name("pandas.core.frame", "DataFrame", frame_data)
    data.for_type_by_name("pandas", "DataFrame", frame_data)
    formatters["e2b/data"] = data
    formatters["e2b/chart"] = ChartFormatter(parent=shell.display_formatter)
    formatters["application/json"].for_type(list, json_value)
    formatters["application/json"].for_type(dict, json_value)
    # active_types was computed before we came.
    shell.display_formatter.active_types = list(formatters)
    _show_images()
    _keep_no_output(shell)
    shell.ask_exit = _leave


class _Unkept(dict):
    """A record of outputs by execution that forgets each at once."""

    def __missing__(self, count):
        return []


def _keep_no_output(shell):
    """IPython keeps a copy of everything printed and shown, for a notebook,
    which no client here saves. It takes longer to keep than to print, and a program
    that prints without end would fill the memory with it."""
    shell._tee = lambda channel: contextlib.nullcontext()
    shell.history_manager.outputs = _Unkept()


def _leave():
    """exit() and quit(): they end the code, as sys.exit() does, but not
    the kernel with all its variables."""
    raise SystemExit


def figure_chart(figure):
    """The chart of a figure; {} where there is none to be had."""
    try:
        return sys.modules["_cay_chart"].extract(figure)
    except Exception:
        return {}


def frame_data(frame):
    """A data frame as lists by column name."""
    try:
        if frame.size > MAX_VALUES:
            return None
        return {
            _key(name, lenient=True): [_plain(v, lenient=True) for v in frame.iloc[:, i].tolist()]
            for i, name in enumerate(frame.columns)
        }
    except Exception:
        return None


def json_value(value):
    """A list or dict as JSON, or None where it does not fit."""
    try:
        return _plain(value, budget=[MAX_VALUES])
    except Exception:
        return None


def _plain(value, lenient=False, depth=0, budget=None):
    """value as JSON knows it. A value that JSON cannot say is an error, or with
    lenient its text."""
    if budget is not None:
        budget[0] -= 1
        if budget[0] < 0 or depth > MAX_DEPTH:
            raise ValueError("too large")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is str or kind is int:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_key(k, lenient): _plain(v, lenient, depth + 1, budget) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, lenient, depth + 1, budget) for v in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _plain(float(value))
    return _foreign(value, lenient, depth, budget)


def _foreign(value, lenient, depth, budget):
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat() if value == value else None  # NaT is not itself
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        if isinstance(value, numpy.datetime64):
            return None if numpy.isnat(value) else str(value)
        return _plain(value.item(), lenient, depth + 1, budget)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _plain(value.tolist(), lenient, depth + 1, budget)
    if lenient:
        text = str(value)
        return None if text in ("NaT", "<NA>") else text
    raise TypeError(type(value).__name__)


def _key(key, lenient=False):
    if isinstance(key, str):
        return str.__str__(key)
    plain = key if lenient and isinstance(key, tuple) else _plain(key, lenient)
    if plain is None or isinstance(plain, (bool, int, float)):
        return json.dumps(plain)
    if isinstance(plain, str):
        return plain
    if lenient:
        return str(key)
    raise TypeError("key")


def _show_images():
    """Saving a picture to a file also displays it; so does show(), as there is
    no window to show one in."""
    try:
        from PIL import Image, ImageShow
    except ImportError:
        return
    save = Image.Image.save

    def save_and_display(self, fp, *args, **kwargs):
        save(self, fp, *args, **kwargs)
        # matplotlib saves its own figures this way, which are displayed.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(fp, (str, os.PathLike)) and not caller.startswith("matplotlib"):
            _display(self)

    save_and_display.__doc__ = save.__doc__
    Image.Image.save = save_and_display

    class Display(ImageShow.Viewer):
        """Shows a picture to the client, in colours that PNG has."""

        def show(self, image, **options):
            if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                image = image.convert(Image.getmodebase(image.mode))
            _display(image)
            return True

    ImageShow.register(Display, 0)  # before those that look for programs


def _display(image):
    from IPython.display import display

    display(image)

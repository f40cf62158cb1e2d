"""Fonts, libraries and tools of the template code-interpreter-v1."""

import pytest
from e2b_code_interpreter import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox.create("code-interpreter-v1", timeout=300) as sandbox:
        yield sandbox


def test_every_script_is_drawn(sandbox):
    """matplotlib warns of each character for which it draws a box. Pillow's and
    plotly's boxes are all the same."""
    execution = sandbox.run_code(r"""import io, warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt
words = {"Chinese": "\u7b80\u4f53\u7e41\u9ad4", "Japanese": "\u65e5\u672c\u3072\u30ab", "Korean": "\ud55c\uad6d\uc5b4",
         "Hindi": "\u0939\u093f\u0928\u094d\u0926\u0940", "Thai": "\u0e44\u0e17\u0e22"}
for name, word in words.items():
    figure = plt.figure()
    figure.text(0.1, 0.5, word)
    figure.savefig(io.BytesIO())
    plt.close(figure)
warnings.simplefilter("default")
from PIL import Image, ImageDraw, ImageFont
fonts = {"Hindi": "NotoSansDevanagari-Regular.ttf", "Thai": "NotoSansThai-Regular.ttf"}
def drawn(font, text):
    image = Image.new("L", (60, 60))
    ImageDraw.Draw(image).text((5, 5), text, 255, ImageFont.truetype(font, 40))
    return image.tobytes()
for name, word in words.items():
    font = fonts.get(name, "NotoSansCJK-Regular.ttc")
    assert drawn(font, word[0]) != drawn(font, "\U0010fffd"), name
import plotly.graph_objects as go
def picture(text):
    return go.Figure(layout={"title": text}).to_image("png", width=300, height=200)
box = picture("\U0010fffd" * 2)
for name, word in words.items():
    assert picture(word[0] * 2) not in (box, picture(word[-1] * 2)), name
""", timeout=120)
    assert execution.error is None, execution.error


def test_libraries_and_git(sandbox):
    execution = sandbox.run_code("import altair, bokeh, ipywidgets\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass")
    assert execution.error is None and "TqdmWarning" not in "".join(execution.logs.stderr)
    sandbox.commands.run("git init -q /srv/ours && git -C /srv/ours -c user.name=a -c user.email=a@b.c commit -q --allow-empty -m one", user="root")
    assert "one" in sandbox.commands.run("git -C /srv/ours log --oneline").stdout

"""The Python Desktop SDK: what it promises, on a screen that is looked at.

Nothing is drawn at once: every look waits until it is there.
"""

import base64
import http.client
import io
import os
import re
import socket
import struct
import time
import urllib.parse
import uuid

import e2b
import pytest
from e2b_desktop import Sandbox
from PIL import Image

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])
SIZE = (1152, 720)
PANEL = 28  # its height: it has a clock


def eventually(probe, seconds=120):
    """Calls until the result is true; a command that fails is not true yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            result = probe()
        except e2b.CommandExitException as failed:
            result, why = None, failed
        else:
            why = result
        if result:
            return result
        assert time.monotonic() < deadline, f"not true after {seconds} s: {why}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def desktop():
    sandbox = Sandbox.create(resolution=SIZE, timeout=1800)
    yield sandbox
    sandbox.kill()


def picture(desktop):
    return Image.open(io.BytesIO(bytes(desktop.screenshot()))).convert("RGB")


def below_panel(desktop):
    image = picture(desktop)
    return image.crop((0, PANEL, *image.size)).tobytes()


def windows(desktop, application):
    return [w for w in desktop.get_application_windows(application) if w]


def titles(desktop, application):
    return [desktop.get_window_title(w) for w in windows(desktop, application)]


def drawn(desktop):
    """Waits for the panel and the background."""
    def probe():
        image = picture(desktop)
        return image.getpixel((image.width // 2, 5)) != (0, 0, 0) and image.getpixel((image.width // 2, image.height - 5)) != (0, 0, 0)

    eventually(probe)


def focus(desktop, application, title=""):
    """Waits for a window, and until it has the keyboard."""
    window = eventually(lambda: [w for w in windows(desktop, application) if title in desktop.get_window_title(w)])[-1]

    def probe():
        desktop.commands.run(f"xdotool windowactivate {window}")
        return desktop.get_current_window_id() == window

    eventually(probe)
    return window


def text(desktop, path):
    return desktop.files.read(path) if desktop.files.exists(path) else ""


def test_screen(desktop):
    drawn(desktop)
    image = Image.open(io.BytesIO(bytes(desktop.screenshot())))
    assert (image.format, image.size) == ("PNG", SIZE) and desktop.get_screen_size() == SIZE
    assert len(image.convert("RGB").getcolors(1 << 24)) > 8
    assert b"".join(desktop.screenshot(format="stream")).startswith(b"\x89PNG")
    assert not desktop.commands.run("ls /tmp/screenshot-* 2>/dev/null | wc -l").stdout.strip("0\n")
    desktop.move_mouse(123, 456)
    assert desktop.get_cursor_position() == (123, 456)
    desktop.wait(10)


def test_mouse(desktop):
    desktop.commands.run("stdbuf -oL xev -geometry 400x300+300+200 -event button -event mouse > /tmp/events", background=True, timeout=0)
    window = eventually(lambda: desktop.commands.run("xdotool search --onlyvisible --name 'Event Tester'").stdout.split())[0]
    place = desktop.commands.run(f"xdotool getwindowgeometry --shell {window}").stdout
    x, y = (int(re.search(rf"{axis}=(\d+)", place).group(1)) + 150 for axis in "XY")

    def buttons(kind, number):
        return len(re.findall(rf"{kind} event[^\n]*\n[^\n]*\n[^\n]*button {number},", text(desktop, "/tmp/events")))

    def pressed(number, times):
        eventually(lambda: buttons("ButtonPress", number) == times and buttons("ButtonRelease", number) == times)

    # Until the window takes the first click it may have none of them.
    desktop.move_mouse(x, y)  # once: moving to where it is takes xdotool 16 s

    def first():
        desktop.left_click()
        return buttons("ButtonPress", 1)

    eventually(first)
    desktop.wait(500)
    before = buttons("ButtonPress", 1)
    desktop.double_click()
    pressed(1, before + 2)
    desktop.right_click()
    pressed(3, 1)
    desktop.middle_click()
    pressed(2, 1)
    desktop.scroll("up", 3)
    pressed(4, 3)
    desktop.scroll("down", 2)
    pressed(5, 2)
    desktop.drag((x + 1, y), (x + 60, y + 40))
    pressed(1, before + 3)
    assert desktop.get_cursor_position() == (x + 60, y + 40)
    desktop.mouse_press("right")
    eventually(lambda: buttons("ButtonPress", 3) == 2)
    desktop.mouse_release("right")
    pressed(3, 2)
    desktop.commands.run("pkill xev")


def test_keyboard_and_windows(desktop):
    desktop.launch("xfce4-terminal")
    window = focus(desktop, "xfce4-terminal")
    assert "Terminal" in desktop.get_window_title(window) and windows(desktop, "xfce4-terminal") == [window]
    said = "it's \"30%\" of $HOME; a line longer than a chunk is — äöü"
    desktop.write("cat > /tmp/typed")
    desktop.press("enter")
    desktop.write(said)
    desktop.press("enter")
    desktop.press(["ctrl", "d"])
    eventually(lambda: text(desktop, "/tmp/typed") == said + "\n")
    desktop.write("ecko done > /tmp/edited")
    for key in ["home", "right", "right", "delete"]:
        desktop.press(key)
    desktop.write("h")
    desktop.press("enter")
    eventually(lambda: text(desktop, "/tmp/edited") == "done\n")
    desktop.press(["alt", "f4"])
    eventually(lambda: desktop.commands.run("pgrep -c xfce4-terminal || true").stdout.strip() == "0")


PAGE = """<body style="background: #0c0"><script>
document.title = 'Ready ' + !!document.createElement('canvas').getContext('webgl')
document.onclick = () => document.title = 'Clicked'
</script>"""


def test_open(desktop):
    desktop.files.write("/tmp/note.txt", "a note")
    desktop.open("/tmp/note.txt")
    eventually(lambda: any("note.txt" in title for title in titles(desktop, "mousepad")))
    desktop.commands.run("pkill mousepad")
    desktop.files.write("/home/user/page.html", PAGE)
    desktop.open("file:///home/user/page.html")
    eventually(lambda: any("Ready true" in title for title in titles(desktop, "chromium")))
    focus(desktop, "chromium", "Ready")
    green = (0, 0xcc, 0)
    eventually(lambda: picture(desktop).getpixel((SIZE[0] // 2, SIZE[1] // 2)) == green)
    desktop.left_click(SIZE[0] // 2, SIZE[1] // 2)
    eventually(lambda: any("Clicked" in title for title in titles(desktop, "chromium")))
    desktop.files.write("/home/user/other.html", "<title>Launched</title>")
    desktop.launch("google-chrome", "file:///home/user/other.html")
    eventually(lambda: any("Launched" in title for title in titles(desktop, "chromium")))
    desktop.commands.run("pkill chromium; true")


def get(path, **headers):
    connection = http.client.HTTPConnection(SERVER.hostname, SERVER.port, timeout=60)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body


class Viewer:
    """A websocket, as far as a VNC client needs one."""

    def __init__(self, path, host):
        self.socket = socket.create_connection((SERVER.hostname, SERVER.port), timeout=60)
        self.socket.sendall((
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Protocol: binary\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        assert b" 101 " in self.file.readline()
        while self.file.readline() != b"\r\n":
            pass
        self.got = b""

    def read(self, count):
        while len(self.got) < count:
            kind, size = self.file.read(2)
            assert kind & 0x0f == 2, f"frame of kind {kind:#x}"
            if size == 126:
                size = struct.unpack(">H", self.file.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.file.read(8))[0]
            self.got += self.file.read(size)
        out, self.got = self.got[:count], self.got[count:]
        return out

    def send(self, data):
        self.socket.sendall(bytes([0x82, 0x80 | len(data)]) + bytes(4) + data)  # masked with zeros

    def security(self):
        """Shakes hands and returns the ways to authenticate that are offered."""
        assert self.read(12) == b"RFB 003.008\n"
        self.send(b"RFB 003.008\n")
        return list(self.read(self.read(1)[0]))

    def screen(self):
        """Enters without a password and returns the size of the screen."""
        self.send(b"\x01")
        assert self.read(4) == bytes(4)
        self.send(b"\x01")  # shared
        return struct.unpack(">HH", self.read(4))

    def close(self):
        self.file.close()
        self.socket.close()


NO_PASSWORD, PASSWORD = 1, 2


def test_stream(desktop):
    desktop.stream.start()
    url = urllib.parse.urlparse(desktop.stream.get_url(view_only=True))
    assert url.hostname.startswith(f"6080-{desktop.sandbox_id}.") and "view_only=true" in url.query
    with pytest.raises(RuntimeError):
        desktop.stream.start()
    by_name, by_path = {"Host": url.netloc}, f"/s/{desktop.sandbox_id}/6080"
    by_headers = {"E2b-Sandbox-Id": desktop.sandbox_id, "E2b-Sandbox-Port": "6080"}
    for path, headers in (("/vnc.html", by_name), ("/vnc.html", by_headers), (by_path + "/vnc.html", {})):
        status, body = get(path, **headers)
        assert status == 200 and b"noVNC" in body
    status, body = get("/core/rfb.js", **by_name)
    assert status == 200 and b"class RFB" in body
    for path, host in (("/websockify", url.netloc), (by_path + "/websockify", SERVER.netloc)):
        viewer = Viewer(path, host)
        assert viewer.security() == [NO_PASSWORD]
        assert viewer.screen() == SIZE
        viewer.close()
    with pytest.raises(RuntimeError):
        desktop.stream.get_auth_key()
    desktop.stream.stop()
    eventually(lambda: desktop.commands.run("pgrep -x x11vnc || echo none").stdout.strip() == "none")
    desktop.stream.start(require_auth=True, vnc_port=5901, port=6081)
    key = desktop.stream.get_auth_key()
    url = urllib.parse.urlparse(desktop.stream.get_url(auth_key=key))
    assert url.hostname.startswith("6081-") and f"password={key}" in url.query
    viewer = Viewer("/websockify", url.netloc)
    assert viewer.security() == [PASSWORD]
    viewer.close()
    desktop.stream.stop()


def test_pause_and_resume(desktop):
    desktop.launch("xfce4-terminal")
    focus(desktop, "xfce4-terminal")
    desktop.write("cat > /tmp/kept\n")
    desktop.write("before ")
    desktop.move_mouse(10, SIZE[1] - 10)
    # Drawn, and nothing moves any more.
    before = eventually(lambda: (shot := below_panel(desktop)) == below_panel(desktop) and shot)
    desktop.pause()
    desktop.connect(timeout=1800)
    eventually(lambda: below_panel(desktop) == before)
    desktop.write("after\n")
    desktop.press(["ctrl", "d"])
    eventually(lambda: text(desktop, "/tmp/kept") == "before after\n")
    desktop.write("exit\n")


def test_forks_diverge(desktop):
    desktop.launch("xfce4-terminal")
    focus(desktop, "xfce4-terminal")
    desktop.write("cat > /tmp/who\n")
    desktop.write("I am ")
    other = Sandbox.connect(desktop.fork()[0].sandbox_id, timeout=900)
    try:
        for one, name in ((desktop, "the first"), (other, "another")):
            one.write(name + "\n")
            one.press(["ctrl", "d"])
        for one, name in ((desktop, "the first"), (other, "another")):
            eventually(lambda: text(one, "/tmp/who") == f"I am {name}\n")
        eventually(lambda: below_panel(desktop) != below_panel(other))
    finally:
        other.kill()


def test_a_dockerfile_of_ours():
    name = "t" + uuid.uuid4().hex[:10]
    e2b.Template.build(e2b.Template().from_image("e2bdev/desktop").run_cmd("echo ours > ~/ours"), name, cpu_count=1, memory_mb=1024)
    desktop = Sandbox.create(name, timeout=900)
    try:
        drawn(desktop)
        assert desktop.files.read("/home/user/ours") == "ours\n"
    finally:
        desktop.kill()

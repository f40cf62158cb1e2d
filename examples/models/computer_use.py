"""A model works a desktop with Anthropic's computer tool: it sees the screen, clicks and types.

    pip install anthropic==2.14.0 e2b-desktop==2.7.2
    eval "$(cay env --new-key me)"; export ANTHROPIC_API_KEY=...
    python computer_use.py

It prints the note that the model has written with an editor on the screen. The operator adds the template
once: cay template add desktop.
"""

import base64
import os
import shlex

from anthropic import Anthropic
from e2b import CommandExitException
from e2b_desktop import Sandbox

MODEL = os.environ.get("MODEL", "claude-sonnet-5")
SIZE = (1024, 768)
NOTE = "/home/user/note.txt"
TOOL = {"type": "computer_20251124", "name": "computer", "display_width_px": SIZE[0], "display_height_px": SIZE[1]}
ORDER = "An editor is open on the screen. Write the line 'typed on a screen that a model sees' with it, and save the file with ctrl+s. Then say that you are done."


def act(desktop, action, coordinate=None, text="", start_coordinate=None, scroll_direction="down", scroll_amount=3, duration=1, **_):
    """Does what the model asks for; ValueError says what it cannot ask."""
    clicks = {"left_click": desktop.left_click, "right_click": desktop.right_click, "middle_click": desktop.middle_click, "double_click": desktop.double_click}
    if action in clicks:
        clicks[action](*(coordinate or ()))
    elif action == "mouse_move":
        desktop.move_mouse(*coordinate)
    elif action == "left_click_drag":
        desktop.drag(start_coordinate, coordinate)
    elif action == "type":
        desktop.write(text)
    elif action == "key":
        desktop.commands.run("xdotool key -- " + shlex.quote(text))
    elif action == "scroll" and scroll_direction in ("up", "down"):
        if coordinate:
            desktop.move_mouse(*coordinate)
        desktop.scroll(scroll_direction, scroll_amount)
    elif action == "wait":
        desktop.wait(int(min(duration, 60) * 1000))
    elif action != "screenshot":
        raise ValueError(f"there is no {action} of that kind here")


def result(desktop, call):
    """The screen after a call; an error is marked, so that the model tries again."""
    out = {"type": "tool_result", "tool_use_id": call.id}
    try:
        act(desktop, **call.input)
    except (ValueError, TypeError, CommandExitException) as wrong:
        return {**out, "content": f"That cannot be done: {wrong}", "is_error": True}
    desktop.wait(1000)  # until it is drawn
    screen = base64.b64encode(bytes(desktop.screenshot())).decode()
    return {**out, "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": screen}}]}


def open_editor(desktop):
    """Opens an editor, and waits until it has the keyboard."""
    desktop.commands.run(f"touch {NOTE}")
    desktop.launch("org.xfce.mousepad", NOTE)
    for _ in range(120):
        try:
            if "note.txt" in desktop.get_window_title(desktop.get_current_window_id()):
                return
        except CommandExitException:
            pass  # no window has it
        desktop.wait(500)
    raise TimeoutError("the editor does not open")


def main():
    client = Anthropic()
    messages = [{"role": "user", "content": ORDER}]
    with Sandbox.create(resolution=SIZE, timeout=900) as desktop:
        open_editor(desktop)
        for _ in range(20):
            answer = client.beta.messages.create(model=MODEL, max_tokens=4096, messages=messages, tools=[TOOL], betas=["computer-use-2025-11-24"])
            if answer.stop_reason != "tool_use":
                break
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": [result(desktop, part) for part in answer.content if part.type == "tool_use"]})
        print(desktop.files.read(NOTE))


if __name__ == "__main__":
    main()

"""The other end of a worker of Claude Managed Agents: a queue with one session, as Anthropic's SDK asks it.

The session's agent calls bash with nonsense, then with a program, and says its last
word only if the result that is sent back is the sandbox's.
"""

import http.server
import json
import threading

from standin import Failed

PROGRAM = ("python3 -c \"import os; print(sum(n * n for n in range(2, 10000) "
           "if all(n % d for d in range(2, int(n ** 0.5) + 1))), os.environ.get('E2B_SANDBOX'))\"")
RESULT = "37546387960 true"
KEY = "stand-in"


class Environment:
    """The queue, and what was said in its session."""

    def __init__(self):
        self.changed = threading.Condition()
        self.events = []
        self.queued = True
        self.wrong = []  # requests that it does not know
        self.say("agent.tool_use", name="bash", input={"commands": "nonsense"})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Handler,), {"environment": self}))
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_port

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def said(self):
        return json.dumps({"events": self.events, "wrong requests": self.wrong}, indent=1)

    def say(self, kind, **more):
        with self.changed:
            self.events.append({"id": f"event_{len(self.events)}", "type": kind, "processed_at": "2026-11-01T00:00:00Z", **more})
            self.changed.notify_all()

    def hear(self, event):
        """A result of the worker's, and the agent's next word."""
        with self.changed:
            self.events.append({"id": f"event_{len(self.events)}", "processed_at": "2026-11-01T00:00:00Z", **event})
            text = "".join(part["text"] for part in event["content"])
            if event["is_error"] and len(self.events) == 2:
                self.say("agent.tool_use", name="bash", input={"command": PROGRAM})
                return
            if not event["is_error"] and RESULT in text:
                self.say("agent.message", content=[{"type": "text", "text": "The sum is 37546387960."}])
            self.say("session.status_terminated")

    def check(self):
        """Fails unless the agent came to its last word."""
        if self.wrong or not any(event["type"] == "agent.message" for event in self.events):
            raise Failed("the agent of the session has no answer")


class Handler(http.server.BaseHTTPRequestHandler):
    """The requests of a worker: claim, lease, events."""

    protocol_version = "HTTP/1.1"

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        path, queue = self.path.split("?")[0], self.environment
        work = {"id": "work_1", "type": "work", "environment_id": "env_1", "created_at": "2026-11-01T00:00:00Z", "metadata": {}, "state": "active",
                "data": {"type": "session", "id": "session_1"}}
        if self.headers["Authorization"] != f"Bearer {KEY}" or "X-Api-Key" in self.headers:
            self.answer({"type": "error", "error": {"type": "authentication_error", "message": "wrong key"}}, 401)
        elif path == "/v1/environments/env_1/work/poll":
            queued, queue.queued = queue.queued, False
            self.answer(work if queued else None)
        elif path in ("/v1/environments/env_1/work/work_1/ack", "/v1/environments/env_1/work/work_1/stop"):
            self.answer(work)
        elif path == "/v1/environments/env_1/work/work_1/heartbeat":
            self.answer({"type": "work_heartbeat", "last_heartbeat": "2026-11-01T00:00:00Z", "lease_extended": True, "state": "active", "ttl_seconds": 60})
        elif path == "/v1/sessions/session_1":
            self.answer({"type": "session", "id": "session_1", "environment_id": "env_1", "agent": {"type": "agent", "id": "agent_1", "skills": []}, "resources": []})
        elif path == "/v1/sessions/session_1/events" and self.command == "GET":
            self.answer({"data": queue.events, "next_page": None})
        elif path == "/v1/sessions/session_1/events":
            for event in body["events"]:
                queue.hear(event)
            self.answer({"data": body["events"]})
        elif path == "/v1/sessions/session_1/events/stream":
            self.stream()
        else:
            queue.wrong.append(f"{self.command} {self.path}")
            self.answer({"type": "error", "error": {"type": "not_found_error", "message": "unknown"}}, 404)

    do_GET = do_POST = handle_any

    def stream(self):
        """All events, as they come, to the end of the session."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        while True:
            with self.environment.changed:
                self.environment.changed.wait_for(lambda: len(self.environment.events) > sent, 60)
                new = self.environment.events[sent:]
            for event in new:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
                sent += 1
                if event["type"] == "session.status_terminated":
                    return
            if not new:
                return

    def log_message(self, *args):
        pass

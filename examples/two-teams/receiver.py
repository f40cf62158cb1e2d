"""Prints the events that a webhook sends, if they are signed with the secret: receiver.py whsec_… [PORT]."""

import http.server
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

SECRETS = sys.argv[1].split(",")
PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 8900


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        for secret in SECRETS:
            try:
                event = Webhook(secret).verify(body, headers)
            except WebhookVerificationError:
                continue
            print(event["type"], event.get("sandboxId") or event.get("data"), flush=True)
            return self.answer(204)
        return self.answer(401)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()

"""A stand-in for an OpenAI-compatible server: `python fake_server.py PORT [deaf]`; `deaf` ignores SIGTERM.

It answers one word for each output token asked, and refuses a conversation of more than two user turns.
"""

import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        answers = {"/health": b"ok", "/v1/models": json.dumps({"data": [{"id": "fake"}]}).encode()}
        self._send(200 if self.path in answers else 404, answers.get(self.path, b""))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        messages = request["messages"] if "messages" in request else [{"role": "user", "content": request["prompt"]}]
        users = [message for message in messages if message["role"] == "user"]
        if request["model"] != "fake" or len(users) > 2:
            self._send(400, b"no")
            return
        words = request["max_tokens"]
        deltas = [{"choices": [{"delta": {"content": f"w{i} "}, "text": f"w{i} "}]} for i in range(words)]
        prompt = sum(len(message["content"].split()) for message in messages)
        usage = {"prompt_tokens": prompt, "completion_tokens": words, "prompt_tokens_details": {"cached_tokens": 1}}
        events = [*deltas, {"choices": [{"delta": {}, "finish_reason": "length"}]}, {"choices": [], "usage": usage}]
        lines = [*map(json.dumps, events), "[DONE]"]
        self._send(200, "".join(f"data: {line}\n\n" for line in lines).encode(), "text/event-stream")


if __name__ == "__main__":
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("child", child.pid, flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

"""A model that says the next piece of its answer when it is told to."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any


class Speaker:
    """OpenAI's chat completions on a loopback socket. Where an answer stops, and when, is up to the test."""

    def __init__(self) -> None:
        self._due: Queue[dict[str, Any] | None] = Queue()
        due = self._due

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                while chunk := due.get():
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="speaker")
        self._thread.start()

    def settings(self) -> dict[str, Any]:
        """Of a gateway whose agent has this model."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        provider = {"baseUrl": url, "api": "openai-completions", "apiKey": "k", "models": [{"id": "speaker"}]}
        return {
            "agents": {"defaults": {"model": "local/speaker"}},
            "models": {"providers": {"local": provider}},
        }

    def says(self, *pieces: str) -> None:
        for piece in pieces:
            self._due.put({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})

    def ends(self) -> None:
        """The answer that is being given is whole."""
        self._due.put({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._due.put({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 10}})
        self._due.put(None)

    def close(self) -> None:
        self._due.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

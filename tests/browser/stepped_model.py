"""A fake model server whose answer the test streams piece by piece."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any


class SteppedModel:
    """OpenAI's chat completions API on a loopback socket. The test decides when each chunk is sent."""

    def __init__(self) -> None:
        self._chunks: Queue[dict[str, Any] | None] = Queue()
        chunks = self._chunks

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                while chunk := chunks.get():
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="stepped-model")
        self._thread.start()

    def settings(self) -> dict[str, Any]:
        """Settings of a gateway whose agents use this model."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        provider = {"baseUrl": url, "api": "openai-completions", "apiKey": "k", "models": [{"id": "stepped"}]}
        return {
            "agents": {"defaults": {"model": "local/stepped"}},
            "models": {"providers": {"local": provider}},
        }

    def stream(self, *pieces: str) -> None:
        for piece in pieces:
            self._chunks.put({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})

    def finish(self) -> None:
        """End the current answer."""
        self._chunks.put({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self._chunks.put({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 10}})
        self._chunks.put(None)

    def close(self) -> None:
        self._chunks.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

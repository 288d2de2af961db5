"""A chat completion server of the standard library for the benchmark's tests: `PORT [MODE]`.

It also starts a process in a session of its own, as vLLM and Ray do, and writes its id to `pids`.
"""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mode = "right"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        num_tokens = body["max_tokens"] - (self.mode == "short" and body["max_tokens"] > 1)
        events = [{"choices": [{"delta": {"content": "word "}}]}] * num_tokens
        usage = {"choices": [], "usage": {"completion_tokens": num_tokens}}
        lines = [json.dumps(event) for event in (*events, usage)]
        answer = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main() -> None:
    port, Handler.mode = int(sys.argv[1]), [*sys.argv[2:], "right"][0]
    if Handler.mode == "broken":
        sys.exit("no such model")
    worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with Path("pids").open("a") as file:
        file.write(f"{worker.pid}\n")
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()

"""A registry of images on this machine: the part of its protocol by which images are fetched."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(layout: Path) -> Iterator[str]:
    """The address at which the blobs of a folder in OCI's layout can be fetched, manifests among them by digest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, digest = self.path.split("/")[-2:] if self.path.count("/") > 2 else ("", "")
            blob = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
            if self.path == "/v2/":
                self.answer(200, b"{}", "application/json")
            elif blob.is_file():
                manifest = "application/vnd.oci.image.manifest.v1+json"
                self.answer(200, blob.read_bytes(), manifest if kind == "manifests" else "application/octet-stream")
            else:
                error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
                self.answer(404, json.dumps(error).encode(), "application/json")

        do_HEAD = do_GET

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Not among the tests' output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()

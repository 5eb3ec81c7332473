"""A receiver of push notifications on loopback."""

import asyncio

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Webhook:
    """Keeps what it was told, in order."""

    def __init__(self):
        loop, self.queue = asyncio.get_running_loop(), asyncio.Queue()
        queue = self.queue

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers['Content-Length']))
                loop.call_soon_threadsafe(queue.put_nowait, (self.headers, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.server.daemon_threads = True
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f'http://127.0.0.1:{self.server.server_port}/told'

    async def next(self, patience):
        return await asyncio.wait_for(self.queue.get(), patience)

    def close(self):
        self.server.shutdown()
        self.server.server_close()

"""A server that answers as a test has it: rightly, wrongly, or not at all."""
import contextlib
import json
import socket
import struct
import threading


class Exchange:
    """A request, and what may be sent for it."""

    def __init__(self, connection):
        self.connection = connection
        head, body = b"", b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(65536)
            if not piece:
                raise ConnectionError("no request")
            head += piece
        head, body = head.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        self.line = lines[0]
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        while len(body) < int(self.headers["content-length"]):
            body += connection.recv(65536)
        self.body = body

    def send(self, data):
        self.connection.sendall(data if isinstance(data, bytes) else data.encode())

    def reply(self, status=200, body=b"{}", headers="Content-Type: application/json\r\n"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def begin_stream(self, headers=""):
        self.send(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{headers}\r\n")

    def chunk(self, text):
        self.send(f"{len(text):x}\r\n{text}\r\n")

    def event(self, text):
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
        self.chunk("data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                                          "choices": [choice]}) + "\n\n")

    def wait_for_end(self):
        """Until the other side has closed."""
        with contextlib.suppress(OSError):
            while self.connection.recv(65536):
                pass

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


class FakeUpstream:
    """answer(exchange) is called for each request, by a thread of its own; its end closes the connection, unless keeps."""

    def __init__(self):
        self.answer = Exchange.reply
        self.tls = None  # an ssl.SSLContext
        self.keeps = False  # connections for more requests
        self.connections = 0
        self.ended = threading.Semaphore(0)  # once for each connection
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                while True:
                    exchange = Exchange(connection)
                    keeps = self.keeps  # as it was asked: whoever has the answer may change it
                    self.answer(exchange)
                    if not keeps:
                        break
        self.ended.release()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

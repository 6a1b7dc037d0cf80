"""An upstream by TLS, whose certificate is its own or another's."""
import json
import ssl

from certificates import make_certificate
from fake_upstream import Exchange, FakeUpstream
from upstream_server import QUESTION, ask, routing


def test_tls(tmp_path, monkeypatch):
    authority = make_certificate(tmp_path, "authority", "Test authority")
    names = []

    def context(certificate):
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(certificate["pem"], certificate["key"])
        made.sni_callback = lambda _, name, __: names.append(name)
        return made
    good = context(make_certificate(tmp_path, "good", "localhost", authority))
    elsewhere = context(make_certificate(tmp_path, "elsewhere", "example.com", authority))
    unknown = context(make_certificate(tmp_path, "unknown", "localhost", make_certificate(tmp_path, "other", "Another")))
    monkeypatch.setenv("SSL_CERT_FILE", authority["pem"])
    fake = FakeUpstream()
    fake.tls = good
    seen = []

    def answer(exchange):
        seen.append(exchange)
        exchange.begin_stream()
        exchange.event("a" * 100_000)
        exchange.send("0\r\n\r\n")
    fake.answer = answer
    with routing(f"https://localhost:{fake.port}/v1", "--upstream-timeout", "1") as server:
        chunks = list(server.client.chat.completions.create(model="gpt-x", messages=QUESTION * 5000, stream=True))
        assert chunks[0].choices[0].delta.content == "a" * 100_000 and names == ["localhost"]
        assert len(json.loads(seen[0].body)["messages"]) == 5000
        # One handshake for several requests.
        fake.answer = Exchange.reply
        fake.keeps = True
        assert [ask(server).status_code for _ in range(5)] == [200] * 5 and fake.connections == 2
        fake.keeps = False
        fake.answer = lambda exchange: exchange.reply(headers="Connection: close\r\n")
        assert ask(server).status_code == 200 and fake.connections == 2
        fake.answer = answer
        for context, word in ((elsewhere, "ostname mismatch"), (unknown, "unable to get local issuer")):
            fake.tls = context
            reply = ask(server)
            assert reply.status_code == 502 and word in reply.json()["error"]["message"], reply.text
        fake.tls = None  # it speaks HTTP
        fake.answer = Exchange.reply
        assert ask(server).status_code in (502, 504)
        assert len(seen) == 1
    fake.close()

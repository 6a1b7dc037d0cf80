"""The page at the server's root: what it asks for, and what a browser shows of it."""
import asyncio
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import aiohttp
import pytest
import requests

from api_server import serving

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = " ".join(f"Rule {i}: answer question {i} in one short sentence." for i in range(8))
KEY = "the right key"


def chat(server, system, question):
    reply = server.post("/v1/chat/completions", {"max_tokens": 2, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": question}]})
    assert reply.status_code == 200, reply.text


@pytest.fixture(scope="module")
def server():
    with serving("-c", 2048, "--api-key", KEY, key=KEY, name="<script>alert(1)</script>") as running:
        yield running


class Browser:
    """Chromium, driven through DevTools. Whatever its console says is in .complaints."""

    def __init__(self, folder):
        self.folder = folder
        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.answers = {}
        self.complaints = []

    async def __aenter__(self):
        port_file = pathlib.Path(self.folder, "DevToolsActivePort")
        await until(lambda: port_file.exists() and "\n" in port_file.read_text(), 60)
        port = port_file.read_text().split()[0]
        self.session = aiohttp.ClientSession()
        async with self.session.get(f"http://127.0.0.1:{port}/json") as reply:
            tabs = [target for target in await reply.json() if target["type"] == "page"]
        self.socket = await self.session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0)
        self.reader = asyncio.create_task(self.read())
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        return self

    async def __aexit__(self, *_):
        await self.session.close()
        self.process.kill()
        self.process.wait()

    async def read(self):
        async for message in self.socket:
            told = json.loads(message.data)
            if "id" in told:
                self.answers.pop(told["id"]).set_result(told)
            elif told["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
                                    "Page.javascriptDialogOpening"):
                self.complaints.append(json.dumps(told["params"]))

    async def call(self, method, **params):
        number = self.call_count = getattr(self, "call_count", 0) + 1
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(answer, 30)
        assert "error" not in told, told
        return told["result"]

    async def value(self, expression):
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def text(self, selector):
        return await self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText).join('\\n')")

    async def until_text(self, selector, wanted):
        text = ""
        for _ in range(100):
            text = await self.text(selector)
            if re.search(wanted, text):
                return text
            await asyncio.sleep(0.1)
        raise AssertionError(f"{selector} has no {wanted!r}, but {text!r}; {self.complaints}")

    async def enter(self, key):
        await self.value("document.getElementById('key-input').focus()")
        await self.call("Input.insertText", text=key)
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                            windowsVirtualKeyCode=13)


async def until(condition, seconds):
    for _ in range(seconds * 10):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it took too long")


def in_browser(look):
    """look(browser) with a browser of its own."""
    if not shutil.which("chromium"):
        pytest.skip("chromium is not installed")

    async def run(folder):
        async with Browser(folder) as browser:
            await look(browser)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asyncio.run(run(folder))


def test_the_page_needs_no_key_and_nothing_from_elsewhere(server):
    reply = requests.get(server.url + "/", timeout=10)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    for rule in ("default-src 'none'", "connect-src 'self'", "form-action 'none'", "frame-ancestors 'none'"):
        assert rule in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", reply.text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|cookie|\son\w+=|eval\(",
                         reply.text)


def test_it_asks_only_for_what_there_is(server):
    page = requests.get(server.url + "/", timeout=10).text
    assert page.count("fetch(") == 1 and set(re.findall(r"ask\((\w+)", page)) == {"path", "PATHS"}
    paths = re.findall(r'"(/.*?)"', re.search(r"const PATHS = \{.*\}", page)[0])
    assert "/metrics" in paths and len(paths) == 4
    for path in paths:
        assert server.get(path).status_code == 200, path


def test_it_knows_every_reason_and_metric(server):
    page = requests.get(server.url + "/", timeout=10).text
    table = (ROOT / "docs/cache-reports.md").read_text().partition("| Reason |")[2].partition("\n\n")[0]
    reasons = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert "diverged" in reasons
    assert [reason for reason in reasons if f'  {reason}: "' not in page] == []
    families = (ROOT / "docs/metrics.md").read_text()
    for name in re.findall(r'"((?:vllm|larder):\w+[a-z])"', page):
        assert f"`{name}`" in families, name


def test_what_a_browser_shows(server):
    async def look(browser):
        await browser.call("Page.navigate", url=server.url + "/")
        await browser.until_text("#state", "Waits for a key")
        assert await browser.text("#key-error") == ""
        await browser.enter("a wrong key")
        await browser.until_text("#key-error", "does not know this key")
        assert await browser.value("document.getElementById('main').checkVisibility()") is False
        refused = [complaint for complaint in browser.complaints if " 401 " in complaint]
        assert refused and browser.complaints == refused, "the browser's own words on a 401, nothing else"
        browser.complaints.clear()

        await browser.enter(KEY)
        await browser.until_text("#state", "Answers")
        await browser.until_text("#empty", "No request yet")
        assert "<script>alert(1)</script>" in await browser.text("#model")
        for system, question in ((RULES, "What is bread?"), (RULES, "What is salt?"),
                                 ("Be <b>kind</b>. " + RULES, "What is salt?")):
            await asyncio.to_thread(chat, server, system, question)
        await browser.until_text("#requests", r"\d+ diverged: changed system prompt at token \d+ in message 0 \(system\)")
        assert await browser.value("document.querySelectorAll('#requests > li').length") == 3
        reused, prompt = (server.metrics()[f"vllm:prompt_tokens{of}_total"] for of in ("_cached", ""))
        await browser.until_text("#reuse", f"^{100 * reused / prompt:.1f} %$")
        await browser.until_text("#misses", "never seen")

        await browser.value("document.querySelector('#requests summary').click()")
        details = await browser.until_text("#requests .more", "The report as JSON")
        assert "Keep the system prompt" in details and "<b>kind</b>" in details
        assert await browser.value("document.querySelectorAll('#requests b, #model script').length") == 0
        await browser.call("Page.navigate", url=server.url + "/")
        await browser.until_text("#requests", "diverged")  # the tab has kept the key
        assert browser.complaints == []

    in_browser(look)


def test_what_to_do_stands_in_the_report(server):
    """And not in the page, too."""
    chat(server, RULES, "What is bread?")
    assert server.post("/reset_prefix_cache", {}).status_code == 200
    chat(server, RULES, "What is bread?")
    lost = server.get("/v1/cache/requests").json()["data"][0]["misses"][0]
    page = requests.get(server.url + "/", timeout=10).text
    assert lost["reason"] == "evicted" and "/reset_prefix_cache" in lost["advice"]
    assert lost["advice"] not in page and "miss.advice" in page

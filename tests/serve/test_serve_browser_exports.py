"""In a real browser: charts and timelines leave as PNG and CSV, and a trace arrives in Perfetto's page.

ui.perfetto.dev itself is not reached: a page of our own stands in its place, under its name and over HTTPS, and speaks
Perfetto's protocol (PING, PONG, then the trace in a message), so that origins and policies are those of the real thing.
"""

from __future__ import annotations

import base64
import csv
import http.server
import io
import ssl
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from browser import find_chromium, open_browser, open_page, wait_for, wait_for_charts
from service import RunningService, run_service
from small_folder import make_small_folder

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="needs chromium and chromedriver"),
]
STAND_IN = b"""<!doctype html><title>Perfetto's stand-in</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) {
    const { buffer, title, fileName } = event.data.perfetto;
    const bytes = new Uint8Array(buffer);
    document.title = "arrived";
    window.arrived = { origin: event.origin, title, fileName, bytes: btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join("")) };
  }
});
</script>"""
# Keeps what is offered for download instead of writing it to disk.
CATCH = """
window.caught = [];
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { window.blob = blob; return make.call(URL, blob); };
HTMLAnchorElement.prototype.click = function () { if (this.download) window.caught.push(this.download); };
"""
READ = """
const done = arguments[arguments.length - 1], read = new FileReader();
read.onload = () => done([window.caught.at(-1), read.result.split(",")[1]]);
read.readAsDataURL(window.blob);
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with run_service(make_small_folder(tmp_path_factory.mktemp("exports"))) as running:
        yield running


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a page over HTTPS."""
    folder = tmp_path_factory.mktemp("certificate")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ui.perfetto.dev",
            "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(make, cwd=folder, check=True, capture_output=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(STAND_IN)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(stand_in: int) -> Iterator[Any]:
    flags = (f"--host-resolver-rules=MAP ui.perfetto.dev:443 127.0.0.1:{stand_in}", "--ignore-certificate-errors")
    with open_browser(flags=flags) as opened:
        opened.set_script_timeout(600)
        yield opened


def press(browser: Any, label: str) -> tuple[str, bytes]:
    """Press a button by its name, and take what is offered for download."""
    browser.execute_script(CATCH)
    found = browser.execute_script(
        "const b = [...document.querySelectorAll('button')].find((n) => (n.getAttribute('aria-label') || n.textContent)"
        " === arguments[0]); b?.click(); return Boolean(b);",
        label,
    )
    assert found, label
    wait_for("the file", lambda: browser.execute_script("return window.caught.length"))
    name, text = browser.execute_async_script(READ)
    return name, base64.b64decode(text)


def look_at(picture: bytes) -> tuple[tuple[int, int], int]:
    """Size of a PNG, and how many colours it has."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    return image.size, len(image.getcolors(maxcolors=1 << 24) or ())


def test_a_chart_is_exported_as_a_picture_and_as_figures(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/reports?path=comparison.json")
    wait_for_charts(browser)
    label = browser.execute_script(
        "return document.querySelector('.exports button[aria-label$=PNG]').getAttribute('aria-label')"
    ).removesuffix(" as PNG")
    assert label.startswith("Waterfall: expected")
    name, picture = press(browser, f"{label} as PNG")
    (width, height), colours = look_at(picture)
    assert name.startswith("waterfall-expected") and name.endswith(".png")
    assert width > 1_000 and height > 200 and colours > 10, "bars, letters and lines in colours of the theme"
    _, text = press(browser, f"{label} as CSV")
    rows = list(csv.reader(io.StringIO(text.decode())))
    assert rows == [
        ["series", "x", "y", "value"],
        ["", "10", "expected", "expected: 10 ms"],
        ["", "12", "compute", "compute: +2 ms"],
        ["", "12", "observed", "observed: 12 ms"],
    ]


def test_every_chart_of_every_page_has_both(browser: Any, service: RunningService) -> None:
    for page in ("/failures", "/evaluation", "/datacenter", "/job?key=report~job-1"):
        open_page(browser, service.address + page)
        charts, pictures, tables = browser.execute_script(
            "const all = (s) => document.querySelectorAll(s).length;"
            "return [all('.chart'), all('.exports button[aria-label$=PNG]'), all('.exports button[aria-label$=CSV]')]"
        )
        assert charts == pictures == tables, page


def test_the_timeline_is_exported_as_a_picture(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1")
    name, picture = press(browser, "PNG")
    (width, _), colours = look_at(picture)
    assert name == "timeline.png" and width > 800 and colours > 5


def test_a_trace_arrives_in_perfettos_page(browser: Any, service: RunningService) -> None:
    open_page(browser, f"{service.address}/job?key=report~job-1")
    ours = browser.current_window_handle
    button = "[...document.querySelectorAll('button')].find((n) => n.textContent === 'Open in Perfetto')"
    # A person's click, which lets a tab open.
    browser.execute_script(f"return {button}").click()
    wait_for("the other tab", lambda: len(browser.window_handles) == 2)
    browser.switch_to.window(next(handle for handle in browser.window_handles if handle != ours))
    wait_for("the trace", lambda: browser.title == "arrived")
    arrived = browser.execute_script("return window.arrived")
    browser.close()
    browser.switch_to.window(ours)
    assert arrived["origin"] == service.address and arrived["fileName"].endswith(".perfetto-trace")
    import httpx

    whole = httpx.get(f"{service.address}/api/trace", params={"key": "report~job-1"}, timeout=600).content
    assert base64.b64decode(arrived["bytes"]) == whole and len(whole) > 200

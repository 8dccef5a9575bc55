"""python -m tests.support.system.top_recording: docs/top.svg and docs/top.cast, of `fairlane top` during a preemption.

A whole `serve` with a small KV pool: a bulk tenant fills it, then an interactive tenant needs room. The cast is what
the command drew on a terminal of its own; the picture is one moment at which somebody is preempted.
"""

import asyncio
import codecs
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from fairlane.cli.top.app import TopApp
from fairlane.cli.top.feed import Feed
from fairlane.cli.top.picture import Picture
from tests.support.system.harness import ADMIN_KEY, Server

DOCS = Path(__file__).parents[3] / "docs"
WIDTH, HEIGHT = 100, 30
COMMAND = [sys.executable, "-c", "from fairlane.cli.main import main; main()"]
POOLS = {"WORKER__KV_MEMORY": "48MiB", "WORKER__HOST_KV_MEMORY": "48MiB", "WORKER__PREFIX_CACHE": "false"}
CALM_S, PLAY_S, LIMIT_S = 3.0, 5.0, 120.0
"""Before the load, after the first preemption, and until there must have been one."""
BULK = ("--concurrency", "10", "--prompt-tokens", "60", "--output-tokens", "260", "--latency-share", "0", "-n", "60")
INTERACTIVE = ("--rate", "0.7", "--prompt-tokens", "160", "--output-tokens", "24", "--duration", "60")


def terminal(server: Server, cast: Path, over: threading.Event) -> None:
    """Run the command on a terminal, and write down what it draws and when, in asciinema's form, version 2."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environ = {**os.environ, "FAIRLANE_URL": server.url, "FAIRLANE_ADMIN_KEY": ADMIN_KEY, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, "top"], env=environ, stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    os.set_blocking(ours, False)
    began_s, decoder = time.monotonic(), codecs.getincrementaldecoder("utf-8")("replace")
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "fairlane top during a preemption"}
    lines = [json.dumps(head)]
    while process.poll() is None:
        try:
            drawn = decoder.decode(os.read(ours, 1 << 16))
        except BlockingIOError:
            time.sleep(0.02)
            drawn = ""
        except OSError:  # it has closed its end
            break
        if drawn:
            shown = drawn.replace(server.url, "http://127.0.0.1:8000")
            lines.append(json.dumps([round(time.monotonic() - began_s, 3), "o", shown], ensure_ascii=False))
        if over.is_set():
            os.write(ours, b"q")
            over.clear()
    process.wait()
    os.close(ours)
    cast.write_text("\n".join(lines) + "\n", encoding="utf-8")


async def picture(server: Server) -> str:
    """As SVG, the first moment at which somebody of the throughput lane is preempted while the latency lane runs."""
    seen = asyncio.Event()

    def look(found: Picture) -> None:
        lanes = {lane.lane: lane for lane in found.overview.lanes}
        if found.maps and lanes["throughput"].preempted and lanes["latency"].running and lanes["latency"].ttft_ms:
            seen.set()

    async def run(tell: object) -> None:
        assert callable(tell)

        def both(found: Picture) -> None:
            tell(found)
            look(found)

        await Feed(server.url, ADMIN_KEY, both, 1.0).run()

    app = TopApp("http://127.0.0.1:8000", run)
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        await asyncio.wait_for(seen.wait(), LIMIT_S)
        await pilot.pause()
        return str(app.export_screenshot(title=app.title))


def bench(server: Server, key: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """A load of one tenant."""
    environ = {**os.environ, "FAIRLANE_URL": server.url, "OPENAI_API_KEY": key}
    return subprocess.Popen([*COMMAND, "bench", *arguments], env=environ, stdout=subprocess.DEVNULL)


def main() -> None:
    """Play it once, and write both files."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory), POOLS).start()
        loads: list[subprocess.Popen[bytes]] = []
        over = threading.Event()
        recording = threading.Thread(target=terminal, args=(server, DOCS / "top.cast", over))
        try:
            keys = {name: server.tenant(name) for name in ("nightly-reports", "support-chat")}
            recording.start()
            time.sleep(CALM_S)
            loads.append(bench(server, keys["nightly-reports"], *BULK))
            time.sleep(CALM_S)
            loads.append(bench(server, keys["support-chat"], *INTERACTIVE))
            (DOCS / "top.svg").write_text(asyncio.run(picture(server)))
            time.sleep(PLAY_S)
        finally:
            over.set()
            for load in loads:
                load.terminate()
                load.wait()
            if recording.ident is not None:
                recording.join()
            server.stop()


if __name__ == "__main__":
    main()

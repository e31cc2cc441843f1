"""Uploaded images, decoded in a process of their own, with a limit of time and memory.

A file that exhausts a limit, or that crashes a decoder, ends that process and nothing else; the next image gets a new
one. The two exchange lengths, JSON and bytes, never pickles: the process that decodes is not trusted.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

import vpgcnn
from vpgcnn.errors import UserError
from vpgcnn.lab.pixels import decode_pixels

__all__ = ["Decoder"]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
PIXELS = 24_000_000
SECONDS = 10.0
"""Time to decode one image. The largest photographs take one second on an idle machine."""
MEMORY = 1 << 30
"""Bytes of the whole process."""
START_SECONDS = 120.0
"""Time in which a new process must be ready, on a machine that is busy."""
TOO_MUCH = "the file takes too much time or memory to decode"


class Decoder:
    """Decodes images, one at a time, in a process that is kept until a file ends it.

    Args:
        seconds: Time for one image.
        memory: Bytes of the process. There is no such limit on Windows.
    """

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.seconds, self.memory = seconds, memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._ready = False

    def decode(self, data: bytes, size: int, channels: int) -> np.ndarray:
        """Decode an image file.

        Args:
            data: The content of the file.
            size: Side of the centre square in pixels, after it is resized.
            channels: 1 or 3.

        Returns:
            Bytes `(channels, size, size)`.

        Raises:
            UserError: If the file is not an image, or exhausts a limit.
        """
        with self._lock:
            process = self._started()
            try:
                with _within(self.seconds, process):
                    _send(process.stdin, {"size": size, "channels": channels, "bytes": len(data)}, data)
                    answer = _receive(process.stdout)
                    if "error" in answer:
                        raise UserError(str(answer["error"])[:300])
                    pixels = _read(process.stdout, channels * size * size)
                return np.frombuffer(pixels, np.uint8).reshape(channels, size, size).copy()
            except (OSError, EOFError, ValueError) as error:
                if isinstance(error, UserError):
                    raise
                self.close()
                self._start()  # the next image need not wait for it
                raise UserError(TOO_MUCH) from error

    def close(self) -> None:
        """End the process."""
        if self._end is not None:
            self._end()
        self._process = self._end = None

    @property
    def process_id(self) -> int | None:
        """The id of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, once it is ready."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        assert self._process is not None
        if not self._ready:
            try:
                with _within(START_SECONDS, self._process):
                    _receive(self._process.stdout)
            except (OSError, EOFError, ValueError) as error:
                self.close()
                raise UserError("no process to decode images could be started: try again") from error
            self._ready = True
        return self._process

    def _start(self) -> None:
        """Start a process, without waiting for it."""
        home = str(Path(vpgcnn.__file__).parents[1])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vpgcnn.apps.serve.decoder", str(self.memory), str(self.seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip
        self._ready = False
        self._end = weakref.finalize(self, _end, self._process)


@contextmanager
def _within(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process if the block takes longer; reading from it then fails."""
    alarm = threading.Timer(seconds, process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was not sent yet is lost, as it should be
                continue


def _send(stream: IO[bytes] | None, message: dict[str, Any], data: bytes = b"") -> None:
    assert stream is not None
    text = json.dumps(message).encode()
    stream.write(len(text).to_bytes(4, "little") + text + data)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> dict[str, Any]:
    length = int.from_bytes(_read(stream, 4), "little")
    if length > 10_000:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(_read(stream, length))
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _read(stream: IO[bytes] | None, count: int) -> bytes:
    assert stream is not None
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


# ------------------------------------------------------------ in the process that decodes


def _limit(memory: int) -> None:
    """Give up what a decoder does not need: memory, files to write, new files, new processes, core dumps."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind, most in (("AS", memory), ("FSIZE", 0), ("CORE", 0), ("NOFILE", 16), ("NPROC", 0)):
        number = getattr(resource, f"RLIMIT_{kind}", None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(number, (most, most))
        except (ValueError, OSError):  # macOS has no limit of address space
            continue


def _serve(memory: int, seconds: float) -> None:
    """Decode images until the other side is gone."""
    from PIL import Image

    Image.init()  # all decoders, while files may still be opened
    from PIL import ImageOps  # noqa: F401

    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing else may be printed between the answers
    _limit(memory)
    _send(sink, {"ready": True})
    while True:
        try:
            order = _receive(source)
        except (EOFError, ValueError):
            return
        data = _read(source, order["bytes"])
        _end_after(2 * seconds)  # if the server was killed, nobody else ends this process
        try:
            pixels = decode_pixels(
                io.BytesIO(data), "the file", order["size"], order["channels"],
                formats=FORMATS, max_pixels=PIXELS,
            )  # fmt: skip
        except UserError as error:
            _send(sink, {"error": str(error).encode("utf-8", "replace").decode()[:300]})
        else:
            _send(sink, {"shape": list(pixels.shape)}, pixels.tobytes())
        _end_after(0)


def _end_after(seconds: float) -> None:
    """Let the system end this process after a while; 0: no longer."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    try:
        _serve(int(sys.argv[1]), float(sys.argv[2]))
    except (MemoryError, BrokenPipeError, KeyboardInterrupt):
        os._exit(1)

"""Session(stream=…): runs are in order with the work on streams of torch, with a thread and a stream each."""

from __future__ import annotations

from typing import Any

import pytest

import rlx
from tests.devices import session_here
from tests.threads import at_once

pytestmark = pytest.mark.cuda
N = 1024


def test_runs_follow_and_lead_the_streams_of_sixteen_threads() -> None:
    session_here("cuda")
    torch = pytest.importorskip("torch", reason="there is no torch here")
    from cupy_backends.cuda.api import runtime

    def work(k: int) -> None:
        stream = torch.cuda.Stream()
        session = rlx.Session("cuda", stream=stream)
        g = rlx.Graph("affine")
        g.output("y", g.input("x", (N, N), "f32") * 2.0 + 1.0)
        exe = session.compile(g)
        with torch.cuda.stream(stream):
            mean = torch.full((N, N), 1 / N, device="cuda")
            for i in range(6):
                x: Any = torch.full((N, N), float(i + k), device="cuda")
                for _ in range(10):
                    x = mean @ x
                held = rlx.Array._foreign(session.device, x.data_ptr(), (N, N), rlx.f32, x)
                del x  # its memory may be used again on this stream, once rlx lets go of it
                y = exe.launch({"x": held}).results["y"]
                held.close()
                out = torch.empty(N, N, device="cuda")
                runtime.memcpyAsync(out.data_ptr(), y._held().address, y.nbytes, 3, stream.cuda_stream)
                want = torch.full((N, N), float(2 * (i + k) + 1))
                torch.testing.assert_close(out.cpu(), want, rtol=1e-4, atol=1e-4)

    at_once(16, work)

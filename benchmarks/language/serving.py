"""The server under clients: `python benchmarks/language/serving.py [--shape small] [--device cpu] [--slots 16]
[--seconds 300]`.

A random model (the shapes of language.py) is served in a process of its own; the clients are here, by default four
times as many as there are slots. First a mixed load, in which all read their answers to the end: tokens a second beside
those of the batch alone, with the same prompts and lengths and no HTTP. Then clients that connect, stream and vanish
for `--seconds`: what they saw between two events, whether every place is free at the end, and the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import rlx  # noqa: E402
from benchmarks.language.decoding import SHAPES, decoder_of, shaped  # noqa: E402

CONTEXT = 512


def wanted(rng: random.Random, vocabulary: int) -> tuple[list[int], int, float]:
    """A prompt, how many tokens are to follow it, and a temperature."""
    prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(8, 200))]
    return prompt, rng.randint(20, 150), rng.choice((0.0, 1.0))


# -- the server's process


class Letters:
    """A stand-in for the package `tokenizers`, whose tokens are bytes, so that encoding takes no time."""

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        return argparse.Namespace(ids=[*text.encode()])


def tokenizer_of(vocabulary: int) -> Any:
    """A tokenizer of letters, one for each byte, and of words, as many as the vocabulary has room for."""
    from rlx.formats.tokenizer.decoding import byte_letters, read_decoder
    from rlx.formats.tokenizer.language import LanguageTokenizer, SpecialTokens, Vocabulary

    letters, file = byte_letters(), Path("letters")
    tokens = dict(enumerate([*letters, *(f"w{i}" for i in range(vocabulary - len(letters)))]))
    decoding = read_decoder({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}, file)
    return LanguageTokenizer(file, Letters(), Vocabulary(tokens, "bytes", decoding), SpecialTokens())


def alone(engine: Any, seconds: float, vocabulary: int) -> float:
    """Tokens a second of a batch whose slots are always taken, without a server."""
    from rlx.models.language.decoder import Sampling
    from rlx.serve.engine import SOON

    batch = engine.batch
    rng, made, start = random.Random(0), 0, time.perf_counter()
    numbers = set()
    while time.perf_counter() - start < seconds:
        while batch.free:
            prompt, count, heat = wanted(rng, vocabulary)
            numbers.add(batch.begin(prompt, count, Sampling(heat, top_p=1.0 if heat else None, seed=count)))
        tokens = engine.step(SOON)
        made += len(tokens)
        numbers -= {token.sequence for token in tokens if token.ended}
    rate = made / (time.perf_counter() - start)
    for number in numbers:
        batch.cancel(number)
    return rate


def steady(batch: Any, seconds: float) -> float:
    """Tokens a second of full slots with nothing that comes or goes."""
    numbers = [batch.add([1, 2, 3], CONTEXT - 16) for _ in range(batch.free)]
    made, start = 0, time.perf_counter()
    while batch.free == 0 and time.perf_counter() - start < seconds:
        made += len(batch.step(16))
    rate = made / (time.perf_counter() - start)
    for number in numbers:
        batch.cancel(number)
    return rate


def serve(a: argparse.Namespace) -> None:
    from rlx.models.language.model import LanguageModel
    from rlx.serve import http
    from rlx.serve.app import Service
    from rlx.serve.limits import Limits

    session = rlx.Session(a.device)
    decoder = decoder_of(a.shape, a.dtype, session, CONTEXT, a.activations, a.activations)
    vocabulary = decoder.config.vocabulary
    model = LanguageModel(decoder, tokenizer_of(vocabulary), "random weights")
    service = Service(model, "random", slots=a.slots, limits=Limits(waiting=4 * a.clients))
    engine = service.engine
    engine.batch.prepare()
    alone(engine, 3.0, vocabulary)  # programs measure their candidates when they first run
    listening = http.bound("127.0.0.1", 0, None)
    found = {"steady": steady(engine.batch, 3.0), "alone": alone(engine, a.reference, vocabulary)}

    def ready() -> None:
        gc.collect()
        gc.freeze()  # as the command does
        told = {"port": listening.getsockname()[1], "device": str(session.info.id), **found}
        print(json.dumps(told), flush=True)

    close = engine.close

    def last() -> None:
        """The batch alone once more before it is closed: other programs of the machine come and go."""
        if "after" not in found:  # the server closes it once more at its end
            engine.stop()
            found["after"] = alone(engine, a.reference, vocabulary)
        close()

    engine.close = last  # type: ignore[method-assign]
    http.serve(service, listening, ready)
    print(json.dumps(found), flush=True)


# -- the clients' process


class Client:
    """One request after the other, each on a connection of its own."""

    def __init__(self, port: int, vocabulary: int, seed: int) -> None:
        self.port, self.vocabulary, self.rng = port, vocabulary, random.Random(seed)
        self.gaps: list[float] = []
        self.first: list[float] = []
        self.whole = self.left = self.failed = 0

    async def run(self, until: float, vanish: float) -> None:
        while time.perf_counter() < until:
            try:
                await asyncio.wait_for(self._one(self.rng.random() < vanish), 120)
            except (OSError, TimeoutError, ValueError) as error:
                self.failed += 1
                print(f"client: {type(error).__name__}: {error}", file=sys.stderr)
                await asyncio.sleep(0.1)

    async def _one(self, vanish: bool) -> None:
        prompt, count, heat = wanted(self.rng, self.vocabulary)
        asked = {"model": "random", "prompt": prompt, "max_tokens": count, "temperature": heat, "stream": True}
        body = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{self.port}\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        events = self.rng.randint(-2, 40) if vanish else 1 << 30
        try:
            sent = head.encode() + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
            start = time.perf_counter()
            writer.write(sent if events != -2 else sent[: len(sent) // 2])
            await writer.drain()
            seen, last = 0, start
            while seen < events:
                line = await reader.readline()
                if not line:
                    raise ValueError("the answer was cut off")
                if seen == 0 and line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                    raise ValueError(line.decode().strip())
                if line.startswith(b"data: [DONE]"):
                    self.whole += 1
                    return
                if line.startswith(b"data: "):
                    if line.startswith(b'data: {"error'):
                        raise ValueError(line.decode()[:200])
                    now = time.perf_counter()
                    (self.gaps if seen else self.first).append(now - last)
                    seen, last = seen + 1, now
            self.left += 1
        finally:
            writer.transport.abort() if vanish else writer.close()


async def metrics(port: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    lines = (line.split() for line in text.partition("\r\n\r\n")[2].splitlines() if line[:1] not in ("#", ""))
    return {name: float(value) for name, value in lines}


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


async def load(port: int, pid: int, a: argparse.Namespace, seconds: float, vanish: float) -> None:
    clients = [Client(port, SHAPES[a.shape]["vocab_size"], seed) for seed in range(a.clients)]
    before, start = await metrics(port), time.perf_counter()
    tasks = [asyncio.create_task(client.run(start + seconds, vanish)) for client in clients]
    held, times = list[float](), os.times()
    while time.perf_counter() < start + seconds:
        await asyncio.sleep(min(1.0, seconds / 20))
        held.append(memory(pid))
    now, took, used = await metrics(port), time.perf_counter() - start, os.times()
    await asyncio.gather(*tasks)
    name = "rlx_generated_tokens_total"
    rate = (now[name] - before[name]) / took
    gaps = np.sort(np.concatenate([np.array(c.gaps) for c in clients])) * 1e3
    first = np.sort(np.concatenate([np.array(c.first) for c in clients])) * 1e3
    quarter = max(1, len(held) // 4)
    what = "vanishing" if vanish else "mixed"
    print(f"{what} load of {a.clients} clients for {took:.0f} s: {rate:,.0f} tokens a second")
    print(f"  answers read to the end {sum(c.whole for c in clients)}, clients left {sum(c.left for c in clients)}, "
          f"failed {sum(c.failed for c in clients)}")  # fmt: skip
    for what, values in (("between events", gaps), ("to the first token", first)):
        p50, p99 = (float(values[int(q * (len(values) - 1))]) for q in (0.5, 0.99))
        print(f"  ms {what}: p50 {p50:.1f}, p99 {p99:.1f}, longest {values[-1]:.1f}, of {len(values)}")
    clock = used.user - times.user + used.system - times.system
    print(f"  server's memory: {np.mean(held[:quarter]):.1f} MB in the first quarter, {np.mean(held[-quarter:]):.1f} "
          f"in the last, at most {max(held):.1f}; clients took {clock:.0f} s of a core", flush=True)  # fmt: skip
    a.rates[bool(vanish)] = rate


async def places(port: int, a: argparse.Namespace) -> None:
    """Waits until all is free; then as many sequences as there are slots run at once."""
    start = time.perf_counter()
    while (now := await metrics(port))["rlx_sequences_running"] + now["rlx_sequences_waiting"]:
        if time.perf_counter() - start > 60:
            raise SystemExit(f"places are not given back: {now}")
        await asyncio.sleep(0.02)
    freed = time.perf_counter() - start
    clients = [Client(port, SHAPES[a.shape]["vocab_size"], 1000 + seed) for seed in range(a.slots)]
    tasks = [asyncio.create_task(client._one(False)) for client in clients]
    seen = 0.0
    while not all(task.done() for task in tasks):
        seen = max(seen, (await metrics(port))["rlx_sequences_running"])
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    print(f"  after it: all places free within {freed:.2f} s; {seen:.0f} of {a.slots} ran at once again")


async def clients(port: int, pid: int, a: argparse.Namespace) -> None:
    await load(port, pid, a, 3.0, 0.0)  # programs and caches are warm then
    await load(port, pid, a, a.mixed, 0.0)
    await load(port, pid, a, a.seconds, 0.6)
    await places(port, a)


def main() -> None:
    parser = shaped(__doc__)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300, help="of the load of clients that vanish")
    parser.add_argument("--mixed", type=float, default=20, help="seconds of the load of clients that stay")
    parser.add_argument("--reference", type=float, default=10, help="seconds of the batch alone, before and after")
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.server:
        return serve(a)
    a.rates = {}
    command = [sys.executable, __file__, "--server", *sys.argv[1:]]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        told = json.loads(server.stdout.readline())
        print(f"{a.shape} in {a.dtype} on {told['device']}, {a.slots} slots; the batch alone: {told['alone']:,.0f} "
              f"tokens a second, {told['steady']:,.0f} where nothing comes or goes", flush=True)  # fmt: skip
        asyncio.run(clients(told["port"], server.pid, a))
        server.send_signal(signal.SIGTERM)
        after = json.loads(server.stdout.readline())["after"]
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        server.wait(60)
    batch = (told["alone"] + after) / 2
    print(f"the batch alone, afterwards: {after:,.0f}; the mixed load is {a.rates[False] / batch:.1%} of the mean")
    return None


if __name__ == "__main__":
    main()

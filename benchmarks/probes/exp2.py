import math, os, sys, time, multiprocessing as mp, pathlib
sys.path.insert(0, os.getcwd()); sys.path.insert(0, "benchmarks")
import numpy as np
import bench_skinny as bs
import rlx
from bench_skinny import Case
A, C = (14336, 4096), (4096, 14336)
SH = {"A": (A, True), "B": (C, True), "C": (C, False), "D": (A, False), "S": ((4096, 4096), True), "s": ((4096, 4096), False)}
def rows(sites, ahead, across=None):
    d = dict(algorithm="rows", sites=sites, ahead=ahead)
    if across: d["across"] = across
    return d
def sk(c, b, a): return dict(algorithm="skinny", columns=c, beside=b, ahead=a)
lib = dict(algorithm="library")
def plan(device):
    cuda = device == "cuda"
    out = []
    for s in "BDAC":
        if cuda:
            out.append(("f32", s, 16, [rows(4, 4, 8), rows(8, 4, 8), rows(8, 4), rows(8, 6, 8), lib]))
            out.append(("f32", s, 4, [rows(4, 3), rows(8, 3), rows(8, 3, 8), lib]))
            out.append(("f32", s, 1, [rows(2, 3), rows(4, 3), rows(4, 2), rows(8, 3), lib]))
        else:
            out.append(("bf16", s, 4, [rows(8, 1, 8), rows(8, 2, 8), rows(16, 1, 8), sk(32, 1, 2), sk(*((16, 1, 2) if SH[s][1] else (64, 1, 2))), sk(32, 2, 2), sk(32, 4, 2)]))
            out.append(("bf16", s, 16, [sk(16, 1, 2), sk(32, 1, 2), sk(64, 1, 2), sk(32, 4, 2), sk(32, 2, 2)]))
            out.append(("f32", s, 16, [rows(4, 2, 8), rows(8, 1, 8), rows(8, 2, 8), rows(8, 2)]))
            out.append(("f32", s, 4, [rows(4, 2, 8), rows(8, 1, 8), rows(8, 2, 8), rows(8, 3)]))
            out.append(("bf16", s, 1, [rows(8, 2), rows(8, 4), rows(16, 2), rows(16, 1)]))
            out.append(("f32", s, 1, [rows(4, 4), rows(8, 2), rows(16, 2)]))
    if cuda:
        for s in "Ss":
            for m in (1, 4, 16):
                out.append(("bf16", s, m, [rows(4, 3) if m == 1 else sk(32, 1, 4), lib]))
                out.append(("f32", s, m, [rows(2 if m == 1 else 4, 3), lib]))
    return out
def case(d, s, m): return Case(d, SH[s][0], SH[s][1], m)
def small(c):
    g = rlx.Graph("small"); w = g.input("w", c.shape, bs.DTYPES[c.dtype]); x = g.input("x", (c.rows, c.k), bs.DTYPES[c.dtype])
    g.output("y", rlx.matmul(x, w, transpose_b=c.transposed)); return g
def prepare(args):
    device, jobs = args
    s = bs.Session(device)
    for d, sh, m, v in jobs:
        try:
            with bs.forcing(**v): s.compile(small(case(d, sh, m))).prepare().close()
        except Exception as e: print("prepare", device, d, sh, m, v, str(e)[:200])
def text(v): return v["algorithm"][0] + ",".join(str(x) for k, x in v.items() if k != "algorithm")
checked = {}
class Bench(bs.Bench):
    def weights(self, case):
        if self._held != (case.dtype, case.shape) or self._store is None:
            if self._store is not None: self._store.close()
            self._store = rlx.Weights(self.session.device)
            types = {name: t.type for name, t in bs.graph_of(case).params.items()}
            self._store.declare(types)
            one = bs.random(case.shape, case.dtype, 0)
            self._values = [one] * case.weights
            for name in types: self._store.set(name, one)
            self._held = case.dtype, case.shape
        return self._store
WEIGHTS = 128e6
Case.weights = property(lambda self: max(2, math.ceil(WEIGHTS / self.nbytes)))
Case.times = property(lambda self: math.ceil(2.6e9 / self.nbytes / self.weights))
def measure(b, c, v, check=True):
    if check: b._wrong.clear()
    try:
        share, wrong, kernel = b.share(c, v)
        return f"{100*share:.0f}{'!' if wrong else ''}"
    except Exception as e:
        return "err " + str(e)[:60]
def best(vs, got):
    return max((i for i in range(len(vs)) if vs[i] != lib), key=lambda i: float(got[i][1].strip("!")) if got[i][1][0] != "e" else 0)
def main():
    global WEIGHTS
    t0 = time.time()
    jobs = {}
    for dev in ("cuda", "vulkan"):
        for d, s, m, vs in plan(dev):
            for v in vs:
                if v != lib: jobs.setdefault(repr((dev, d, SH[s][1], m, v)), (dev, (d, s, m, v)))
    groups = [[], []]
    for dev, j in jobs.values(): groups[dev == "vulkan"].append(j)
    n = 7
    with mp.get_context("spawn").Pool(2 * n) as pool:
        pool.map(prepare, [(dev, g[i::n]) for dev, g in zip(("cuda", "vulkan"), groups) for i in range(n)])
    print(f"prepared {sum(map(len, groups))} in {time.time()-t0:.0f} s", flush=True)
    old = bs.per_run
    bs.per_run = lambda run, seconds: old(run, seconds / 3)
    import rlx.backends.cuda.recorder as rec
    from rlx.backends.vulkan import pipelines
    load = pipelines.load_spirv
    for dev in ("cuda", "vulkan"):
        rec.STREAMS = 1
        b = Bench(dev)
        if dev == "vulkan": WEIGHTS = 450e6
        work = sorted(plan(dev), key=lambda p: (p[0] if dev == "vulkan" else {"f32": "a"}.get(p[0], "b"), SH[p[1]][0], SH[p[1]][1]))
        limit = 38 if dev == "cuda" else 78
        for d, s, m, vs in work:
            if time.time() - t0 > limit: print("out of time", d, s, m); continue
            got = [(text(v), measure(b, case(d, s, m), v)) for v in vs]
            line = f"{dev[0]} {d:4} {s} {m:2}: " + " ".join(f"{a}={x}" for a, x in got)
            if dev == "cuda" and s in "ABCD":
                i = best(vs, got)
                rec.STREAMS = 2; line += f" |2 streams {got[i][0]}={measure(b, case(d, s, m), vs[i], False)}"; rec.STREAMS = 1
            print(line, flush=True)
    for d, s, m, v, names in (("bf16", "B", 16, sk(32, 1, 2), ("S1", "S3")), ("bf16", "D", 16, sk(32, 1, 2), ("S1", "S3")), ("bf16", "B", 16, sk(16, 1, 4), ("S3", "SD",)), ("bf16", "B", 4, rows(8, 2, 8), ("R1", "R2", "R3")), ("bf16", "D", 4, rows(8, 2, 8), ("R1", "R2", "R3")), ("f32", "B", 16, rows(8, 2, 8), ("R1", "R2", "R3")), ("f32", "D", 16, rows(8, 2, 8), ("R1", "R2", "R3")), ("f32", "D", 4, rows(8, 2, 8), ("R1", "R2", "R3"))):
        line = f"probe {d} {s} {m} {text(v)}:"
        for name in names:
            if time.time() - t0 > 90: break
            def probed(stem, name=name):
                f = pathlib.Path(f"benchmarks/probes/{name}/{stem}.spv")
                return f.read_bytes() if f.exists() else load(stem)
            pipelines.load_spirv = probed
            b.session.device.pipelines._made.clear()
            line += f" {name}={measure(b, case(d, s, m), v)}"
        print(line, flush=True)
    print(f"{time.time()-t0:.0f} s")
if __name__ == "__main__": main()

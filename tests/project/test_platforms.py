"""rlx runs on the CPU where the names and folders that only Linux has are taken away.

This is no run on Windows or macOS: it shows that no module takes such a name for granted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.backends.vulkan.loader import library_names

# What Windows lacks, by the pages of os and signal; macOS lacks those of MACOS.
MACOS = {"memfd_create", "sched_getaffinity", "posix_fadvise", "fdatasync"}
WINDOWS = MACOS | {
    "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "WNOHANG", "chown", "fchmod", "fork", "forkpty", "getegid",
    "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "pread", "pwrite", "register_at_fork",
    "setsid", "statvfs", "sysconf", "sysconf_names", "uname", "wait", "waitid",
}  # fmt: skip
MODULES = {"darwin": set[str](), "win32": {"fcntl", "grp", "pwd", "resource", "termios"}}
SIGNALS = {"darwin": set[str](), "win32": {"SIGPIPE", "SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "setitimer"}}

# The standard library and the dependencies are loaded before the platform changes: they know their own by its name.
TAKEN_AWAY = """
import ctypes, json, logging, multiprocessing, os, pathlib, signal, subprocess, sys, tempfile, zoneinfo
import ml_dtypes, numpy as np, onnx, platformdirs, rich.console, rich.progress, rich.table, typer, typer.rich_utils

platform, names, signals, modules = json.loads(sys.argv[1])
for name in names:
    if hasattr(os, name):
        delattr(os, name)
for name in signals:
    if hasattr(signal, name):
        delattr(signal, name)
for name in modules:
    sys.modules[name] = None
stat = os.stat
def without_folders(path, *args, **kwargs):
    if str(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "not here", str(path))
    return stat(path, *args, **kwargs)
os.stat = without_folders
sys.platform = platform
if platform == "win32":
    os.supports_fd = os.supports_fd - {os.utime}  # utime by descriptor, chmod by bits: not there
    os.chmod = None
"""
WORK = """
import rlx
from rlx.host.diskcache import DiskCache
from rlx.driver.registry import probe_all
from rlx.formats.safetensors import SafetensorsFile

said = {}
found, said["reasons"] = probe_all()
said["devices"] = [d.id for d in found]
said["memory"] = found[-1].memory_bytes

@rlx.jit(device="cpu")
def layer(x, w):
    return rlx.softmax(rlx.gelu(x @ w))

x, w = np.ones((70, 90), np.float32), np.full((90, 50), 0.1, np.float32)
said["sum"] = float(np.sum(layer(x, w)))

folder = pathlib.Path(sys.argv[2])
cache = DiskCache("kernels", folder / "cache")
said["stored"] = [cache.put(("a",), b"a\\r\\nb"), cache.put(("a",), b"a\\r\\nb")]
said["kept"] = DiskCache("kernels", folder / "cache").get(("a",)).decode()
said["files"] = len(os.listdir(folder / "cache" / "kernels"))
if platform == "win32":
    def taken(source, target):
        raise PermissionError(13, "another process reads it")
    replace, os.replace = os.replace, taken
    said["taken"] = [cache.put(("a",), b"a\\r\\nb"), cache.put(("b",), b"b")]
    os.replace = replace

header = json.dumps({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
(folder / "t.safetensors").write_bytes(
    len(header).to_bytes(8, "little") + header + np.array([1, 2], np.float32).tobytes()
)
said["tensor"] = SafetensorsFile(folder / "t.safetensors")["t"].tolist()

g = rlx.Graph("saved")
g.output("y", rlx.exp(g.input("x", (2, 2))))
rlx.onnx.save(g, folder / "saved.onnx")
sys.argv = ["rlx", "check", str(folder / "saved.onnx")]
from rlx.cli import main
try:
    main()
except SystemExit as end:
    said["status"] = end.code
print(json.dumps(said))
"""


@pytest.mark.parametrize("platform", [pytest.param("darwin", marks=pytest.mark.full), "win32"])
def test_the_cpu_runs_without_what_only_linux_has(
    platform: str, clean_env: dict[str, str], tmp_path: Path
) -> None:
    names = sorted(WINDOWS if platform == "win32" else MACOS)
    given = json.dumps([platform, names, sorted(SIGNALS[platform]), sorted(MODULES[platform])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TAKEN_AWAY + WORK, given, str(tmp_path)],
        capture_output=True, text=True, env=clean_env, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["devices"] == ["cpu"]
    assert library_names(platform)[0] in said["reasons"]["vulkan"]
    assert said["memory"] > 0
    assert said["sum"] == pytest.approx(70)
    assert said["stored"] == [True, True] and said["kept"] == "a\r\nb" and said["files"] == 1
    if platform == "win32":  # a record that another process holds open is as good as a new one; a missing one is not
        assert said["taken"] == [True, False]
    assert said["tensor"] == [1.0, 2.0]
    assert said.get("status") in (None, 0)
    assert "cpu" in done.stdout


def test_the_loader_has_each_platforms_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VULKAN_SDK", "/sdk")
    assert library_names("win32") == ["vulkan-1.dll"]
    assert library_names("linux")[0] == "libvulkan.so.1"
    mac = library_names("darwin")
    assert mac[0] == "libvulkan.1.dylib"
    assert mac.index("/sdk/lib/libvulkan.1.dylib") < mac.index("/opt/homebrew/lib/libvulkan.1.dylib")
    assert mac.index("libvulkan.dylib") < mac.index("libMoltenVK.dylib")

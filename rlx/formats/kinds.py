"""The kind of a file that was given in place of a model, by its first bytes."""

from __future__ import annotations

from collections.abc import Mapping

from rlx.runtime.saved.container import MAGIC

DOWNLOADED = {  # files that were downloaded in place of weights, by their first four bytes
    b"PK\x03\x04": "a ZIP archive, as torch's are",
    b"vers": "a pointer of Git LFS: download the file itself",
    b"<!DO": "an HTML page: the download failed",
}
PICTURES = {
    b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF",
}  # fmt: skip
SOUNDS = {b"ID3": "MP3", b"\xff\xfb": "MP3", b"OggS": "Ogg", b"fLaC": "FLAC"}


def picture(start: bytes) -> str | None:
    """The image format with these first bytes; None if there is none."""
    return _of(start, PICTURES) or ("WebP" if start[8:12] == b"WEBP" else None)


def sound(start: bytes) -> str | None:
    """The audio format with these first bytes; None if there is none."""
    return "WAV" if start[8:12] == b"WAVE" else _of(start, SOUNDS)


def _of(start: bytes, known: Mapping[bytes, str]) -> str | None:
    return next((name for magic, name in known.items() if start.startswith(magic)), None)


def other_kind(content: bytes) -> str | None:
    """What a file is instead of an ONNX model, by its first bytes, and what to do; None if it may be an ONNX model."""
    if not content:
        return "it is empty"
    if content.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer; fetch the file itself with git lfs pull"
    if content.startswith(MAGIC):
        return "it is a program that rlx has saved; rlx.load_program reads it, and `rlx run` runs it"
    if content.startswith(b"PK\x03\x04"):
        return "it is a zip archive, as PyTorch saves models; export the model with torch.onnx.export"
    if content.startswith(b"\x89HDF"):
        return "it is an HDF5 file, as Keras saves models; convert it with tf2onnx"
    if content[4:8] in (b"TFL3", b"ORTM"):
        return "it is a TensorFlow Lite or ORT file; give the ONNX model that it was made from"
    if content.startswith(b"GGUF"):
        return "it is a GGUF file; rlx.models.load reads it, and `rlx generate` or `rlx embed` runs it"
    if content[8:10] == b'{"':  # a safetensors header after its length
        return "it is a safetensors file; rlx.models.load and `rlx inspect` take the folder that holds it"
    if content.lstrip().startswith(b"{"):
        return "it is JSON; give the model's own file, or the folder that holds a config.json beside its weights"
    if content.startswith(b"\x93NUMPY"):
        return "it is an array that NumPy has saved; --input NAME=FILE.npy of `rlx run` gives it to a model"
    if content.startswith((b"ply\n", b"ply\r")):
        return "it is a PLY file; `rlx view` and rlx.splats.read_ply take those of splats"
    if kind := picture(content):
        return f"it is a {kind} picture; `rlx run model.onnx --input NAME=FILE` says how a model takes it"
    if kind := sound(content):
        return f"it is a {kind} sound; `rlx transcribe` takes WAV files"
    if content[:64].lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a page of HTML or XML, as a download leaves that failed; fetch the file itself"
    try:
        text = content[:64].decode("ascii")
    except UnicodeDecodeError:
        return None
    line = (text.splitlines() or [""])[0]
    return f"it is a text, which begins with {line[:40]!r}" if text.replace("\n", "").isprintable() else None

"""What kind of file stands in a model's place, by its first bytes."""

from __future__ import annotations

from rlx.runtime.saved.container import MAGIC

DOWNLOADED = {  # what lies in the place of weights, by its first four bytes
    b"PK\x03\x04": "a ZIP archive, as torch's are",
    b"vers": "a pointer of Git LFS: download the file itself",
    b"<!DO": "an HTML page: the download failed",
}


def other_kind(content: bytes) -> str | None:
    """The kind of file, by its first bytes, that this is instead of an ONNX model, and what to do; None where it may be
    one."""
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
    if content[8:10] == b'{"':  # that object follows its length
        return "it is a safetensors file; rlx.models.load and `rlx inspect` take the folder that holds it"
    if content.lstrip().startswith(b"{"):
        return "it is JSON; give the model's own file, or the folder that holds a config.json beside its weights"
    return None

"""A tiny Llama with a tokenizer of single bytes and a chat template, and data of its letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.models.language.tiny import LLAMA, write_language_model

CONFIG: dict[str, Any] = {**LLAMA, "vocab_size": 128, "max_position_embeddings": 128}
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role[:1] }}{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>a{% endif %}"
)


def write_base(folder: Path, template: str = TEMPLATE, **settings: Any) -> Path:
    """The model's folder."""
    write_language_model(folder, {**CONFIG, **settings}, text=True)
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(marks))
    return folder


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def talks(count: int) -> list[Any]:
    """Talks of different lengths, some of two questions."""
    made = []
    for i in range(count):
        messages = [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": "abc" * (i % 5 + 1)}]
        if i % 3 == 0:
            messages += [{"role": "user", "content": "more"}, {"role": "assistant", "content": f"{i} {i + 1}"}]
        made.append({"messages": messages})
    return made

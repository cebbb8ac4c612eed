"""Parses JSON bodies into checked requests, and makes refusals in the format of OpenAI's API.

An unknown name is refused, since a server that ignores it would answer another question than was asked; a name of the
API that rlx does not support is accepted only with a value that changes nothing.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rlx.errors import RlxError, meant
from rlx.models.language.graph import SCORED
from rlx.records import Record

# Members that identify the user or concern billing; they do not change an answer.
_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options "
    "moderation".split()
)
# Members of the API that are not supported, each with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "echo": (False,), "suffix": ("",), "modalities": (["text"],), "audio": (), "prediction": (),
    "web_search_options": (), "verbosity": (), "functions": (), "function_call": (),
}  # fmt: skip
# Members that requests to other servers have, each with the members that do the same here.
_CALLED = {
    ("n_predict", "num_predict", "max_new_tokens", "max_length", "max_tokens_to_sample", "n_ctx"):
        ("max_tokens", "max_output_tokens"),
    ("max_tokens", "max_completion_tokens"): ("max_output_tokens",), ("max_output_tokens",): ("max_tokens",),
    ("repeat_penalty", "repetition"): ("repetition_penalty",), ("stop_sequences", "stops"): ("stop",),
    ("n_probs",): ("logprobs", "top_logprobs"), ("temp",): ("temperature",), ("num_return_sequences",): ("n",),
    ("prompt", "inputs", "text", "texts", "content"): ("messages", "input", "prompt", "documents"),
    ("messages", "input"): ("messages", "input", "prompt"),
    ("json_schema", "grammar", "guided_json", "guided_grammar", "guided_regex", "guided_choice",
     "structured_outputs", "format"): ("response_format",),
    ("system", "system_prompt"): ("messages", "instructions"),
    ("think", "enable_thinking", "thinking"): ("chat_template_kwargs",), ("random_seed",): ("seed",),
    ("response_format",): ("text",), ("input_type", "task"): ("prompt_name",),
    ("passages", "texts", "input"): ("documents",), ("top_k",): ("top_n",),
}  # fmt: skip
_HOW = {
    "response_format": """it holds an answer to {"type": "json_schema", "json_schema": {"name": "x", "schema": …}}""",
    "text": """{"format": …}""",
    "chat_template_kwargs": """{"enable_thinking": false}, say, where the template reads that""",
    "messages": """[{"role": "user", "content": "…"}]; "system" is a role too""",
}
# Settings of llama.cpp's, vLLM's and Ollama's servers that have no equivalent in a request.
_NOWHERE = {
    "cache_prompt": "prefixes are always kept; leave it out", "id_slot": "slots are chosen here; leave it out",
    "keep_alive": "the model stays as long as the server; leave it out",
    "options": "what stands in it goes beside the others, num_predict as max_tokens",
    **dict.fromkeys(
        ("mirostat", "mirostat_tau", "mirostat_eta", "typical_p", "tfs_z", "top_a", "samplers", "dynatemp_range",
         "dry_multiplier", "xtc_probability", "use_beam_search", "length_penalty"),
        "tokens are drawn by temperature, top_k, top_p, min_p and the penalties"),
    "stop_token_ids": "stop takes texts", "min_tokens": "nothing makes an answer longer; leave it out",
    **dict.fromkeys(("normalize", "pooling"), "vectors are as the model's file says; rlx serve has --pooling"),
    "truncate": "leave it out; docs/serving.md says which texts are cut",
    "ignore_eos": """logit_bias {"ID": -100} forbids the token that ends""",
    "lora": "rlx serve --adapter NAME=FOLDER loads one, and model names it",
}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_JSON_DEPTH = 100
_MAX_TOOLS = 128
_MAX_BIASED_TOKENS = 1024
MOST_PRIORITY = 1000
MOST_USER = 256  # a user's name is cut to so many characters
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_OWN = {"self", "messages", "tools", "documents", "now", "add_generation_prompt"}  # arguments set by the server


class Refused(Exception):
    """A request that is refused: the status and the body of the response."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        # The message may quote the client's text: JSON can express lone surrogates, which UTF-8 cannot encode.
        super().__init__(message.encode(errors="backslashreplace").decode())
        self.param = None if param is None else param.encode(errors="backslashreplace").decode()
        self.status, self.code = status, code
        self.again = status in (500, 504)  # whether the client should not retry: the same request would fail again

    @property
    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def busy(waiting: int) -> Refused:
    return Refused(429, f"{waiting} requests wait already; try again later", code="server_busy")


class Settings(Record):
    """How sequences are made, whatever their prompt is."""

    choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    stream: bool
    usage: bool  # whether a stream ends with the counts
    top_k: int | None = None  # not in OpenAI's API, but many clients send it
    logprobs: int | None = None  # how many likeliest tokens to give with each token; None: no log-probabilities
    min_p: float | None = None  # not in OpenAI's API either, nor is `repetition`
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] | None = None
    priority: int = 0  # sequences of the least one begin first
    user: str = ""  # the user that the request names

    @property
    def penalized(self) -> bool:
        return self.repetition != 1 or bool(self.presence or self.frequency or self.bias)


class Completion(Record):
    """A request for texts that follow prompts; a prompt is a text, or token ids."""

    model: str
    prompts: list[str | list[int]]
    settings: Settings
    response: Format
    echo: bool = False  # whether the answer begins with the prompt


class Format(Record):
    """What an answer has to be: any text, a JSON object, or JSON of a schema."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: Any = None


class Chat(Record):
    """A request for an answer to messages. `tool` names the tool that must be called; "": any one; None: no call is
    required."""

    model: str
    messages: list[dict[str, Any]]
    settings: Settings
    response: Format
    tools: list[dict[str, Any]]
    tool: str | None
    single: bool = False  # whether the answer may have no more than one call
    template: Mapping[str, Any] | None = None  # further arguments of the chat template
    effort: str | None = None  # the effort of reasoning, which some templates read


class Embeddings(Record):
    """A request for vectors of texts or token ids."""

    inputs: list[str | list[int]]
    base64: bool
    prompt_name: str | None
    dimensions: int | None = None  # how many of a vector's first numbers are asked for


class Rerank(Record):
    """A request to order documents by how well they answer a query: the best `top`, with their texts or without."""

    query: str
    documents: list[str]
    top: int
    texts: bool


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises: Refused."""
    try:
        document = json.loads(body, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None
    except ValueError as error:  # errors of JSON, of UTF-8, and of integers with thousands of digits
        raise Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise Refused(400, f"the body is {shown(document)}; expected a JSON object")
    _check_depth(document)
    return document


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_JSON_DEPTH):
        level = [
            v for held in level if isinstance(held, dict | list)
            for v in (held.values() if isinstance(held, dict) else held)
        ]  # fmt: skip
        if not level:
            return
    raise Refused(400, f"the body is nested more than {_MAX_JSON_DEPTH} deep")


@contextmanager
def named(param: str) -> Iterator[None]:
    """In this context a refusal names the member `param` of the request. Raises: Refused."""
    try:
        yield
    except RlxError as error:
        raise Refused(400, f"{param}: {' '.join(str(error).split())[:1000]}", param) from error


class Fields:
    """The members of an object, each taken by name and checked; members that are never taken are unknown, or must have
    one of their `neutral` values."""

    def __init__(
        self, held: Mapping[str, Any], where: str = "", neutral: Mapping[str, tuple[Any, ...]] = _NEUTRAL
    ) -> None:
        self._held, self._where, self._neutral, self._known = held, where, neutral, set[str]()

    def take(self, name: str) -> Any:
        """The member, None where there is none."""
        self._known.add(name)
        return self._held.get(name)

    def at(self, name: str) -> str:
        return f"{self._where}{name}"

    def wrong(self, name: str, expected: str) -> Refused:
        return Refused(400, f"{self.at(name)} is {shown(self._held.get(name))}; expected {expected}", self.at(name))

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        value = self.take(name)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(name, f"{low}, or to leave it out" if low == high else f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def choice(self, name: str, known: Iterable[str], default: str | None = None) -> str:
        value, names = self.take(name), list(known)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in names:
            raise self.wrong(name, f"one of {', '.join(names)}")
        return value

    def text(self, name: str, needed: bool = False) -> str | None:
        value = self.take(name)
        if (value is None and needed) or (value is not None and not isinstance(value, str)):
            raise self.wrong(name, "a text")
        return value

    def object(self, name: str) -> Fields | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.at(name)}.")

    def done(self) -> None:
        """Raises: Refused for members that are unknown or not supported."""
        for name, value in self._held.items():
            if name in self._known or name in _IGNORED or value is None:
                continue
            if (values := self._neutral.get(name)) is not None:
                if not any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in values):
                    raise Refused(400, f"{name} is not there yet in this server; leave it out", name, "unsupported")
                continue
            known = self._instead(name)
            raise Refused(400, f"{self.at(name)[:80]} is not known{known}", self.at(name)[:80], "unknown_parameter")


    def _instead(self, name: str) -> str:
        """What to send in place of an unknown member, in parentheses; empty where that is not known."""
        if not self._where:
            if name in _NOWHERE:
                return f" ({_NOWHERE[name]})"
            for others, here in _CALLED.items():
                if name in others and (fit := next((n for n in here if n in self._known), None)):
                    if name == "messages" and fit == "prompt":
                        return " (/v1/chat/completions takes messages)"
                    return f" (here it is {fit}{': ' + _HOW[fit] if fit in _HOW else ''})"
        return meant(name, self._known)


def completion(body: dict[str, Any], models: Sequence[str], context: int, choices: int) -> Completion:
    """Raises: Refused."""
    fields, model = _checked_model(body, models)
    prompts = _texts(fields, "prompt", context, choices)
    told = None if fields.take("logprobs") is False else fields.integer("logprobs", 0, SCORED)
    echo = fields.flag("echo")
    result = Completion(model, prompts, _settings(fields, context, choices, 16, told), _format(fields), echo)
    fields.done()
    if len(prompts) * result.settings.choices > choices:
        raise Refused(400, f"{len(prompts)} prompts of {result.settings.choices} choices; at most {choices} are taken",
                      "n")  # fmt: skip
    return result


def chat(body: dict[str, Any], models: Sequence[str], context: int, choices: int) -> Chat:
    """Raises: Refused."""
    fields, model = _checked_model(body, models)
    messages = fields.take("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "a list of messages")
    read = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    tools, tool = _tools(fields)
    told = fields.integer("top_logprobs", 0, SCORED, 0)
    if not fields.flag("logprobs"):
        if told:
            raise Refused(400, "top_logprobs go with logprobs: true alone", "top_logprobs")
        told = None
    single = fields.take("parallel_tool_calls") is not None and not fields.flag("parallel_tool_calls")
    effort = None if fields.take("reasoning_effort") is None else fields.choice("reasoning_effort", _EFFORTS)
    settings, template = _settings(fields, context, choices, None, told), _template(fields)
    result = Chat(model, read, settings, _format(fields), tools, tool, single, template, effort)
    fields.done()
    if tool is not None and result.response.kind != "text":
        raise Refused(400, "response_format and a tool_choice that requires a call exclude each other", "tool_choice")
    return result


def embeddings(
    body: dict[str, Any], models: Sequence[str], context: int, inputs: int, width: int, prompts: Sequence[str] = ()
) -> Embeddings:
    """`models` are the names of the model and of its adapters, which make no embeddings. The request may name one of
    `prompts`, which is put before each text. Raises: Refused."""
    fields, model = _checked_model(body, models)
    if model != models[0]:
        raise Refused(400, f"{model!r} is an adapter; embeddings are made by the model alone, {models[0]!r}", "model")
    texts = _texts(fields, "input", context, inputs)
    base64 = fields.choice("encoding_format", ("float", "base64"), "float") == "base64"
    dimensions = fields.integer("dimensions", 1, width)
    prompt_name = fields.choice("prompt_name", prompts, "") if prompts else ""
    if prompt_name and any(isinstance(text, list) for text in texts):
        raise Refused(400, "input has token ids, before which no prompt can stand; prompt_name is for texts",
                      "prompt_name")  # fmt: skip
    fields.done()
    return Embeddings(texts, base64, prompt_name or None, dimensions)


def rerank(body: dict[str, Any], models: Sequence[str], most: int) -> Rerank:
    """At most `most` documents are taken; `models`: as in `embeddings`. Raises: Refused."""
    fields, model = _checked_model(body, models)
    if model != models[0]:
        raise Refused(400, f"{model!r} is an adapter; documents are ranked by the model alone, {models[0]!r}", "model")
    query, held = fields.text("query", needed=True), fields.take("documents")
    if not isinstance(held, list) or not held:
        raise fields.wrong("documents", "a list of texts, or of objects with a text")
    if len(held) > most:
        raise Refused(400, f"documents has {len(held)} texts; at most {most} are taken", "documents")
    documents = []
    for i, one in enumerate(held):
        text = one
        if isinstance(one, dict):
            inner = Fields(one, f"documents[{i}].")
            text = inner.text("text", needed=True)
            inner.done()
        if not isinstance(text, str):
            raise fields.wrong("documents", "a list of texts, or of objects with a text")
        documents.append(text)
    top = fields.integer("top_n", 1, 1 << 31) or len(documents)
    texts = fields.take("return_documents") is None or fields.flag("return_documents")
    fields.done()
    return Rerank(query or "", documents, top, texts)


def _checked_model(body: dict[str, Any], models: Sequence[str]) -> tuple[Fields, str]:
    """The members of a body, and the model that it names."""
    fields = Fields(body)
    return fields, check_model(fields, models)


def check_model(fields: Fields, models: Sequence[str]) -> str:
    """The model that a request names, or the only one there is. Raises: Refused."""
    asked, known = fields.text("model"), ", ".join(map(repr, models))
    if asked is None:
        if len(models) > 1:
            raise Refused(400, f"model is missing; this server has {known}", "model")
        return models[0]
    if asked not in models:
        raise Refused(404, f"the model {shown(asked)} is not here; this server has {known}", "model",
                      "model_not_found")  # fmt: skip
    return asked


def _texts(fields: Fields, name: str, context: int, most: int) -> list[str | list[int]]:
    value = fields.take(name)
    ids = isinstance(value, list) and bool(value) and all(type(v) is int for v in value)
    texts = [value] if isinstance(value, str) or ids else value
    if not isinstance(texts, list) or not texts:
        raise fields.wrong(name, "a text, token ids, or a list of these")
    if len(texts) > most:
        raise Refused(400, f"{name} has {len(texts)} texts; at most {most} are taken", name)
    for text in texts:
        if isinstance(text, list) and text and all(type(i) is int for i in text):
            if len(text) > context:
                raise too_long(len(text), context, name)
        elif not isinstance(text, str):
            raise fields.wrong(name, "a text, token ids, or a list of these")
    return texts


def too_long(tokens: int, limit: int, param: str) -> Refused:
    return Refused(400, f"{tokens} tokens are more than the {limit} that a prompt may have here", param,
                   "context_length_exceeded")  # fmt: skip


def _settings(
    fields: Fields, context: int, choices: int, tokens: int | None, logprobs: int | None
) -> Settings:
    n = fields.integer("n", 1, choices, 1)
    most = fields.integer("max_tokens", 0, context, tokens)
    newer = fields.integer("max_completion_tokens", 0, context, most)
    if newer != most and fields.take("max_tokens") is not None:
        raise fields.wrong("max_tokens", f"max_completion_tokens, {newer}, or to leave one of them out")
    seed = fields.integer("seed", -(1 << 63), (1 << 64) - 1)
    top_k = fields.integer("top_k", -1, (1 << 31) - 1)  # below 1 for no limit
    stream = fields.flag("stream")
    options, usage = fields.object("stream_options"), False
    if options is not None:
        if not stream:
            raise Refused(400, "stream_options go with stream: true alone", "stream_options")
        usage = options.flag("include_usage")
        options.flag("include_obfuscation")
        options.done()
    return Settings(
        choices=n or 1,
        max_tokens=newer,
        temperature=fields.number("temperature", 0, 2, 1.0),
        top_p=fields.number("top_p", 0, 1, 1.0),
        seed=secrets.randbits(63) if seed is None else seed % (1 << 64),
        stop=_stops(fields),
        stream=stream,
        usage=usage,
        top_k=top_k if top_k is not None and top_k > 0 else None,
        logprobs=logprobs,
        min_p=fields.number("min_p", 0, 1, 0.0) or None,
        repetition=fields.number("repetition_penalty", 0.01, 100, 1.0),
        presence=fields.number("presence_penalty", -2, 2, 0.0),
        frequency=fields.number("frequency_penalty", -2, 2, 0.0),
        bias=_bias(fields),
        priority=fields.integer("priority", -MOST_PRIORITY, MOST_PRIORITY, 0) or 0,
        user=_user(fields),
    )


def _user(fields: Fields) -> str:
    """The user of the client who asks: the API's `safety_identifier`, or the client's own name for the user."""
    named = (fields.take("safety_identifier"), fields.take("user"))
    return next((name[:MOST_USER] for name in named if isinstance(name, str)), "")


def _bias(fields: Fields) -> dict[int, float] | None:
    """`logit_bias`: the numbers added to logits, by token id."""
    held = fields.take("logit_bias")
    if held is None:
        return None
    if not isinstance(held, dict) or len(held) > _MAX_BIASED_TOKENS:
        raise fields.wrong("logit_bias", f"an object of at most {_MAX_BIASED_TOKENS} token ids and numbers")
    result, inner = {}, Fields(held, "logit_bias.")
    for id, value in held.items():
        if not (id.isascii() and id.isdecimal() and len(id) < 10) or str(int(id)) != id:  # 5 and 05 are one token
            raise Refused(400, f"logit_bias has {shown(id)}; expected the id of a token", "logit_bias")
        if value is None:
            raise inner.wrong(id, "a number from -100 to 100")
        result[int(id)] = inner.number(id, -100, 100, 0.0)
    return result


def _template(fields: Fields) -> dict[str, Any]:
    """The further arguments of the chat template, by name."""
    held = fields.take("chat_template_kwargs")
    if held is not None and (not isinstance(held, dict) or not all(name.isidentifier() for name in held)):
        raise fields.wrong("chat_template_kwargs", "an object of names and values")
    if own := _OWN & {*(held or {})}:
        raise Refused(400, f"chat_template_kwargs has {min(own)}, which the server gives", "chat_template_kwargs")
    return held or {}


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    few = isinstance(stops, list) and len(stops) <= 16
    if not few or not all(isinstance(text, str) and 0 < len(text) <= 500 for text in stops):
        raise fields.wrong("stop", "a text, or up to 16 texts, of 1 to 500 characters each")
    return tuple(stops)


def _format(fields: Fields) -> Format:
    format_fields = fields.object("response_format")
    if format_fields is None:
        return Format()
    kind = format_fields.choice("type", ("text", "json_object", "json_schema"))
    schema = None
    if kind == "json_schema":
        inner = format_fields.object("json_schema")
        if inner is None:
            raise format_fields.wrong("json_schema", "an object with name and schema")
        for name in ("name", "description"):
            inner.text(name)
        inner.flag("strict")
        schema = inner.take("schema")
        if not isinstance(schema, dict):
            raise inner.wrong("schema", "a JSON schema")
        inner.done()
    format_fields.done()
    return Format(kind, schema)  # type: ignore[arg-type]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise Refused(400, f"{where} is {shown(message)}; expected an object with role and content", where)
    fields = Fields(message, f"{where}.")
    role = fields.choice("role", _ROLES)
    result: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = fields.take("tool_calls") if role == "assistant" else None
    if calls is not None:
        if not isinstance(calls, list):
            raise fields.wrong("tool_calls", "a list of calls")
        result["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}].") for i, call in enumerate(calls)]
    content = fields.take("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{i}].") for i, part in enumerate(content))
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise fields.wrong("content", "a text, or a list of parts of text")
    result["content"] = content or ""
    for name in ("name", *(["tool_call_id"] if role == "tool" else ["refusal", "reasoning_content"])):
        value = fields.text(name)
        if value is not None and name != "refusal":
            result[name] = value
    if role == "assistant":
        fields.take("annotations")
    fields.done()
    return result


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise Refused(400, f"{where[:-1]} is {shown(part)}; expected a part of text", where[:-1])
    fields = Fields(part, where)
    kind = fields.choice("type", ("text", "refusal"))
    text = fields.text(kind, needed=True)
    fields.done()
    return (text or "") if kind == "text" else ""


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool call as templates take it: with its arguments as an object, where they are one."""
    if not isinstance(call, dict):
        raise Refused(400, f"{where[:-1]} is {shown(call)}; expected a tool call", where[:-1])
    fields = Fields(call, where)
    fields.choice("type", ("function",), "function")
    fields.integer("index", 0, 1 << 31)
    id, function = fields.text("id"), fields.object("function")
    if function is None:
        raise fields.wrong("function", "an object with name and arguments")
    name, arguments = function.text("name", needed=True), function.text("arguments") or "{}"
    function.done()
    fields.done()
    held: Any = arguments
    try:
        document = json.loads(arguments)
        held = document if isinstance(document, dict) else arguments
    except (ValueError, RecursionError):
        pass
    return {"type": "function", "id": id or "", "function": {"name": name, "arguments": held}}


def _tools(fields: Fields) -> tuple[list[dict[str, Any]], str | None]:
    """The tools to offer to the model, and which it must call: "" for any, None if it need not call one."""
    value, choice = fields.take("tools"), fields.take("tool_choice")
    if value is not None and (not isinstance(value, list) or len(value) > _MAX_TOOLS):
        raise fields.wrong("tools", f"a list of at most {_MAX_TOOLS} tools")
    tools = [_tool(tool, f"tools[{i}].") for i, tool in enumerate(value or [])]
    names = [tool["function"]["name"] for tool in tools]
    if len({*names}) < len(names):
        raise Refused(400, "two tools have one name", "tools")
    if isinstance(choice, dict):
        inner = Fields(choice, "tool_choice.")
        inner.choice("type", ("function",))
        function = inner.object("function")
        if function is None:
            raise inner.wrong("function", "an object with the name of a tool")
        named = function.choice("name", names)
        function.done()
        inner.done()
        return tools, named
    kind = fields.choice("tool_choice", ("none", "auto", "required"), "auto")
    if kind == "required" and not tools:
        raise Refused(400, "tool_choice requires a call, and there are no tools", "tool_choice")
    return ([] if kind == "none" else tools), ("" if kind == "required" else None)


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise Refused(400, f"{where[:-1]} is {shown(tool)}; expected a tool", where[:-1])
    fields = Fields(tool, where)
    fields.choice("type", ("function",))
    function = fields.object("function")
    if function is None:
        raise fields.wrong("function", "an object with name and parameters")
    name = function.text("name", needed=True) or ""
    if not _NAME.fullmatch(name):
        raise function.wrong("name", "up to 64 letters, digits, _, - and .")
    result: dict[str, Any] = {"name": name, "description": function.text("description") or ""}
    function.flag("strict")
    parameters = function.take("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise function.wrong("parameters", "a JSON schema")
    result["parameters"] = parameters or {"type": "object", "properties": {}}
    function.done()
    fields.done()
    return {"type": "function", "function": result}


def shown(value: Any) -> str:
    """A value as text for an error message, shortened if long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."

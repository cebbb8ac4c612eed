"""An HTTP server of a language model, as clients of OpenAI's API expect it: `rlx serve`.

One thread owns the model and steps a batch (`engine`); an event loop reads requests (`protocol`), hands token ids in,
and sends text out as it is made (`answers`, `app`).
"""

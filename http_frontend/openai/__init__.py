"""Chat completions and completions as OpenAI defines them, with the extensions of vLLM and SGLang.

Owns the way from a checked body to `GenerateRequest`s and from their outputs to chunks and bodies. Never reads a
socket: the frames go out through `http_frontend.generation`.
"""

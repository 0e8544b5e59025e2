"""xgrammar on the real vocabulary, and a model that writes at random whatever a grammar allows."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import xgrammar

from protocol.sampling import JsonWhitespace
from runtime.environment import read_environment
from runtime.tokenizer_loading import tokenizer_file_for
from runtime.vocabulary import Vocabulary
from scheduler.grammar.schema.converter import schema_grammar
from scheduler.grammar.tokens import tokenizer_info

END = 2
MAX_TOKENS = 220


class RandomWriter:
    """Draws among the allowed tokens; the longer the text, the more it likes those that may end something."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.info = tokenizer_info(vocabulary, vocabulary.size, (END,))
        self._compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        self._bytes = [vocabulary.token_bytes(id) for id in range(vocabulary.size)]
        self._short = numpy.array([0 < len(token) <= 2 for token in self._bytes])
        self._closing = numpy.array([len(token) <= 2 and any(c in b'"}]' for c in token) for token in self._bytes])
        self._mask = numpy.zeros((1, -(-vocabulary.size // 32)), dtype=numpy.int32)

    def compile(self, ebnf: str) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_grammar(ebnf)

    def write(self, grammar: xgrammar.CompiledGrammar, seed: int) -> bytes | None:
        """A finished text, None if it did not end within MAX_TOKENS. Fails where no token is allowed."""
        random = numpy.random.default_rng(seed)
        matcher = xgrammar.GrammarMatcher(grammar, override_stop_tokens=[END])
        text = b""
        for count in range(MAX_TOKENS):
            matcher.fill_next_token_bitmask(self._mask, 0)
            allowed = numpy.unpackbits(self._mask.view(numpy.uint8), bitorder="little")[: len(self._bytes)].astype(bool)
            assert allowed.any(), f"nothing may follow {text!r}"
            mood = random.random()
            preferred = self._closing if mood < 0.2 + count / MAX_TOKENS else self._short if mood < 0.6 else allowed
            ids = numpy.flatnonzero(allowed & preferred)
            if not len(ids):
                ids = numpy.flatnonzero(allowed)
            token = int(ids[random.integers(len(ids))])
            if allowed[END] and random.random() < 0.3:
                token = END
            assert matcher.accept_token(token)
            if token == END:
                return text
            text += self._bytes[token]
        return None


@pytest.fixture(scope="session")
def tokenizer_file(smollm2_gguf: Path) -> Path:
    return tokenizer_file_for(smollm2_gguf, read_environment().cache_folder)


@pytest.fixture(scope="session")
def vocabulary(tokenizer_file: Path) -> Vocabulary:
    return Vocabulary.load(tokenizer_file)


@pytest.fixture(scope="session")
def writer(vocabulary: Vocabulary) -> RandomWriter:
    return RandomWriter(vocabulary)


@pytest.fixture(scope="session")
def texts_of(writer: RandomWriter) -> Callable[..., list[str]]:
    """Finished texts for a schema."""

    @functools.lru_cache(None)
    def cached(schema: str, whitespace: JsonWhitespace, strict: bool, count: int) -> list[str]:
        grammar = writer.compile(schema_grammar(json.loads(schema), whitespace, strict=strict))
        written = [writer.write(grammar, seed) for seed in range(count)]
        return [text.decode() for text in written if text is not None]

    def texts(schema: Any, whitespace: JsonWhitespace = "compact", strict: bool = True, count: int = 4) -> list[str]:
        return cached(json.dumps(schema), whitespace, strict, count)

    return texts

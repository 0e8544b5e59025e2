"""What is known of a model without torch: its configuration, its special tokens, its templates, its defaults."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.engine_config import ModelDescription
from runtime.gguf_config import config_from_gguf, end_tokens_from_gguf, stored_as_from_gguf, tokenizer_config_from_gguf
from runtime.gguf_header import read_gguf_header
from runtime.infill import find_infill
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from runtime.tokenizer_loading import tokenizer_file_for
from runtime.vocabulary import Vocabulary


@dataclass(frozen=True)
class _Checkpoint:
    """What was read off the disk, before it is interpreted."""

    path: Path
    format: Literal["safetensors", "gguf", "dummy"]
    config: dict[str, Any]
    generation: dict[str, Any]
    end_ids: list[int]
    tokenizer_file: Path
    tokenizer_config: dict[str, Any]
    stored_as: str = ""


_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MAX_JSON_BYTES = 64 << 20


def describe_model(args: ServerArgs, path: Path, cache_folder: Path) -> ModelDescription:
    """Reads the checkpoint at `path` (a directory or a .gguf file); StartError in one sentence if it can't serve."""
    try:
        file = _gguf_file(args, path)
        if file is not None:
            return _describe_gguf(args, file, cache_folder)
        return _describe_directory(args, path, cache_folder)
    except (OSError, ValueError) as error:
        raise StartError(f"the model at {path} can't be read: {error}") from None


def _gguf_file(args: ServerArgs, path: Path) -> Path | None:
    """The .gguf file to load, or None for a directory of safetensors (or of a configuration alone, for dummy weights)."""
    if path.is_file():
        if args.load_format == "safetensors":
            raise StartError(f"--load-format safetensors needs a directory, {path} is a file")
        return path
    has_safetensors = any(path.glob("*.safetensors"))
    if args.load_format in ("safetensors", "dummy") or (args.load_format == "auto" and has_safetensors):
        if args.load_format == "safetensors" and not has_safetensors:
            raise StartError(f"there are no .safetensors files in {path}")
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise StartError(f"there are {len(files)} .gguf files in {path}; name one of them with --model-path")
    if files:
        return files[0]
    if any(path.glob("*.bin")) or any(path.glob("*.pt")):
        raise StartError(
            f"the weights in {path} are pickle files, which can run code when read; convert them to safetensors"
        )
    raise StartError(f"there are no weights (.safetensors or .gguf) in {path}")


def _describe_gguf(args: ServerArgs, file: Path, cache_folder: Path) -> ModelDescription:
    header = read_gguf_header(file)
    config = config_from_gguf(header)
    own_tokenizer = Path(args.tokenizer_path).expanduser() if args.tokenizer_path else None
    tokenizer_file = tokenizer_file_for(
        own_tokenizer or file, cache_folder, None if own_tokenizer else header.header_bytes
    )
    tokenizer_config = tokenizer_config_from_gguf(header)
    if own_tokenizer is not None:
        tokenizer_config |= read_tokenizer_config(own_tokenizer if own_tokenizer.is_dir() else own_tokenizer.parent)
    format: Literal["gguf", "dummy"] = "dummy" if args.load_format == "dummy" else "gguf"
    ends = end_tokens_from_gguf(header)
    stored_as = stored_as_from_gguf(header)
    return _description(args, _Checkpoint(file, format, config, {}, ends, tokenizer_file, tokenizer_config, stored_as))


def _describe_directory(args: ServerArgs, path: Path, cache_folder: Path) -> ModelDescription:
    config = _read_json(path / "config.json")
    if not config:
        raise StartError(f"there is no config.json in {path}")
    own_tokenizer = Path(args.tokenizer_path).expanduser() if args.tokenizer_path else path
    tokenizer_file = tokenizer_file_for(own_tokenizer, cache_folder)
    tokenizer_config = read_tokenizer_config(own_tokenizer if own_tokenizer.is_dir() else own_tokenizer.parent)
    generation = _read_json(path / "generation_config.json")
    format: Literal["safetensors", "dummy"] = "dummy" if args.load_format == "dummy" else "safetensors"
    ends = _ids(generation.get("eos_token_id")) or _ids(text_config(config).get("eos_token_id"))
    return _description(args, _Checkpoint(path, format, config, generation, ends, tokenizer_file, tokenizer_config))


def _description(args: ServerArgs, found: _Checkpoint) -> ModelDescription:
    config, tokenizer_config, generation = found.config, found.tokenizer_config, found.generation
    text = text_config(config)
    vocabulary = Vocabulary.load(found.tokenizer_file)
    ends = [*found.end_ids, *_named_id(vocabulary, tokenizer_config.get("eos_token"))]
    bos = _named_id(vocabulary, tokenizer_config.get("bos_token")) or _ids(text.get("bos_token_id"))
    architectures = config.get("architectures") or [""]
    return ModelDescription(
        name=args.model_path,
        path=str(found.path),
        format=found.format,
        served_names=args.served_model_name or (args.model_path,),
        architecture=str(architectures[0]),
        config=config,
        context_length=_context_length(text),
        vocab_size=_integer(text, "vocab_size") or vocabulary.size,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        bos_token_id=bos[0] if bos else None,
        tokenizer_file=str(found.tokenizer_file),
        tokenizer_config=tokenizer_config,
        stored_as=found.stored_as,
        infill=find_infill(vocabulary),
        generation_defaults=_sampling_defaults(generation),
    )


def _sampling_defaults(generation: dict[str, Any]) -> dict[str, float]:
    """What generation_config.json says of sampling; ValueError names what is no number."""
    stated = {name: generation[name] for name in _SAMPLING_DEFAULTS if generation.get(name) is not None}
    for name, value in stated.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else int | float):
            raise ValueError(f"{name} in generation_config.json is {value!r}, which is not a number of its kind")
    return stated


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that speaks of text: nested in models that read images, too."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Special tokens as plain strings, and the chat template from wherever the checkpoint keeps it: chat_template.jinja
    (and additional_chat_templates/), chat_template.json, or tokenizer_config.json itself. The rest is the tokenizer's."""
    settings = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    result = {name: settings[name] for name in _SPECIAL_TOKENS if name in settings}
    for name, token in result.items():
        if isinstance(token, dict):
            result[name] = token.get("content")
    template = settings.get("chat_template")
    template = _read_json(folder / "chat_template.json").get("chat_template", template)
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text()
    further = {file.stem: file.read_text() for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if further:
        former = {"default": template} if isinstance(template, str) else template or {}
        template = former | further
    if template:
        result["chat_template"] = template
    return result


def _context_length(text: dict[str, Any]) -> int:
    """Positions that the model was made for. YaRN states the stretched length only as a factor."""
    length = (
        _integer(text, "max_position_embeddings")
        or _integer(text, "n_positions")
        or _integer(text, "max_seq_len")
        or 2048
    )
    scaling = text.get("rope_parameters") or text.get("rope_scaling")
    if isinstance(scaling, dict) and (scaling.get("rope_type") or scaling.get("type")) == "yarn":
        original = scaling.get("original_max_position_embeddings")
        factor = scaling.get("factor")
        if isinstance(original, int) and isinstance(factor, int | float):
            length = max(length, int(original * factor))
    return length


def _integer(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _ids(value: Any) -> list[int]:
    """A token id field: absent, one id, or a list of them."""
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, int) and not isinstance(entry, bool)]


def _named_id(vocabulary: Vocabulary, token: Any) -> list[int]:
    id = vocabulary.id_of(token) if isinstance(token, str) else None
    return [] if id is None else [id]


def _number(digits: str) -> int | float:
    """Integers of more than 64 bits as floats: no message between processes holds larger ones, and some files do."""
    return int(digits) if len(digits) < 19 else float(digits)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file, {} if there is no file; ValueError if it is something else."""
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {_MAX_JSON_BYTES >> 20} MiB")
    try:
        document = json.loads(path.read_bytes(), parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path.name} does not hold a JSON object")
    return document

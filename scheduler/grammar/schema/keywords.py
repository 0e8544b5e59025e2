"""What becomes of each keyword of draft 2020-12 (and of common neighbours): the table that docs/structured-output.md shows.

enforced   every finished text obeys it, wherever it stands
partly     enforced in the forms that the note names; any other form is refused
annotation says nothing about validity, and is ignored as the specification has it
refused    a 400 at admission that names the keyword and its JSON path
Any other keyword is refused, too (it may be a misspelt one), save those that begin with "x-".
"""

from typing import Any, Literal

from scheduler.grammar.schema.errors import Path, refused

Treatment = Literal["enforced", "partly", "annotation", "refused"]

KEYWORDS: dict[str, tuple[Treatment, str]] = {
    "type": ("enforced", ""),
    "enum": ("enforced", "values that the other keywords beside it rule out are left out"),
    "const": ("enforced", ""),
    "minLength": ("partly", "not beside a pattern or format whose own lengths lie outside"),
    "maxLength": ("partly", "as minLength"),
    "pattern": ("partly", "no look-around, back references, \\b, \\p or inline flags; one pattern per string"),
    "format": ("partly", "the formats listed below; others are refused on strings"),
    "minimum": ("enforced", ""),
    "maximum": ("enforced", ""),
    "exclusiveMinimum": ("enforced", ""),
    "exclusiveMaximum": ("enforced", ""),
    "multipleOf": ("partly", "whole numbers up to 128, or any whole number in a range of at most 2000 multiples"),
    "items": ("enforced", "a schema; the array form of older drafts is refused"),
    "prefixItems": ("enforced", ""),
    "minItems": ("enforced", ""),
    "maxItems": ("enforced", ""),
    "uniqueItems": ("partly", "items with enum or const (given in the order of the schema), or at most one item"),
    "properties": ("enforced", "given in the order of the schema"),
    "required": ("enforced", ""),
    "additionalProperties": ("enforced", "without it, no further properties if strict, else any"),
    "patternProperties": ("partly", "one pattern, matched by no declared property; no further properties beside it"),
    "propertyNames": ("enforced", ""),
    "minProperties": ("partly", "as far as declared properties (and one further) can fulfil it"),
    "maxProperties": ("enforced", ""),
    "dependentRequired": ("enforced", "an optional property whose dependents may be missing is left out"),
    "unevaluatedProperties": ("partly", "at the level that no allOf or $ref takes in"),
    "unevaluatedItems": ("partly", "as unevaluatedProperties"),
    "anyOf": ("enforced", ""),
    "oneOf": ("partly", "branches that exclude each other by type, by constants or by a required property"),
    "allOf": ("enforced", ""),
    "$ref": ("partly", "inside the document: '#', '#/...', '#anchor'; recursion too"),
    "$defs": ("enforced", ""),
    "definitions": ("enforced", ""),
    "$anchor": ("enforced", ""),
    "$schema": ("annotation", ""),
    "$id": ("annotation", "at the root; elsewhere it is refused"),
    "$comment": ("annotation", ""),
    "$vocabulary": ("annotation", ""),
    "title": ("annotation", ""),
    "description": ("annotation", ""),
    "default": ("annotation", ""),
    "deprecated": ("annotation", ""),
    "readOnly": ("annotation", ""),
    "writeOnly": ("annotation", ""),
    "example": ("annotation", ""),
    "examples": ("annotation", ""),
    "contentEncoding": ("annotation", ""),
    "contentMediaType": ("annotation", ""),
    "contentSchema": ("annotation", ""),
    "discriminator": ("annotation", ""),
    "externalDocs": ("annotation", ""),
    "xml": ("annotation", ""),
    "not": ("partly", "beside enum or const"),
    "if": ("partly", "as not"),
    "then": ("partly", "as not"),
    "else": ("partly", "as not"),
    "contains": ("partly", "as not"),
    "minContains": ("partly", "as not"),
    "maxContains": ("partly", "as not"),
    "dependentSchemas": ("partly", "as not"),
    "dependencies": ("refused", ""),
    "additionalItems": ("refused", ""),
    "$dynamicRef": ("refused", ""),
    "$dynamicAnchor": ("refused", ""),
    "$recursiveRef": ("refused", ""),
    "$recursiveAnchor": ("refused", ""),
    "nullable": ("refused", 'write "type": [..., "null"]'),
}

ONLY_BESIDE_ENUM = (
    "not",
    "if",
    "contains",
    "minContains",
    "maxContains",
    "dependentSchemas",
)

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

_SHAPES: dict[str, Any] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentRequired"), dict),
    **dict.fromkeys(("required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"), list),
    **dict.fromkeys(("items", "additionalProperties", "propertyNames", "unevaluatedItems"), (dict, bool)),
    **dict.fromkeys(("unevaluatedProperties", "not", "if", "then", "else", "contains"), (dict, bool)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("pattern", "format", "$ref", "$anchor"), str),
    "uniqueItems": bool,
    "type": (str, list),
}
_COUNTS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
)


def check_keywords(schema: dict[str, Any], path: Path) -> None:
    """Refuses keywords that aren't supported and values that a keyword can't have. Looks at this level alone."""
    for keyword, value in schema.items():
        known = KEYWORDS.get(keyword)
        if known is None:
            if keyword.startswith("x-"):
                continue
            raise refused(keyword, path, "this keyword is not known")
        if known[0] == "refused":
            raise refused(keyword, path, "this keyword is not supported" + (f"; {known[1]}" if known[1] else ""))
        _check_shape(keyword, value, path)
    if "$id" in schema and path:
        raise refused("$id", path, "a schema within a schema is not supported")


def _check_shape(keyword: str, value: Any, path: Path) -> None:
    if keyword in _COUNTS:
        if isinstance(value, float) and value.is_integer():
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise refused(keyword, path, "must be a whole number from 0 on")
    shape = _SHAPES.get(keyword)
    if shape is None:
        return
    numeric = shape == (int, float)
    if not isinstance(value, shape) or (numeric and isinstance(value, bool)):
        raise refused(keyword, path, f"has a value of the wrong type ({type(value).__name__})")
    if keyword in ("allOf", "anyOf", "oneOf", "enum") and not value:
        raise refused(keyword, path, "must not be empty")
    if keyword == "required" and not all(isinstance(name, str) for name in value):
        raise refused(keyword, path, "must be a list of strings")
    if keyword == "type":
        for name in [value] if isinstance(value, str) else value:
            if name not in TYPES:
                raise refused(keyword, path, f"{name!r} is not a type")

"""Strings: plain, of a length, of a pattern, of a format; as expressions for JSON text, quotes included."""

from scheduler.grammar.schema.characters import JSON_RAW, CharacterSet, character_class, json_characters
from scheduler.grammar.schema.conjunction import Conjunction
from scheduler.grammar.schema.ebnf import CharacterWriter, GrammarText, choice, pattern_expression, repeat
from scheduler.grammar.schema.errors import GrammarRefused, Path, refused, unsatisfiable
from scheduler.grammar.schema.pattern import Branch, Characters, Repeat, lengths, parse_pattern

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_DAY = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"([1-9][0-9]{{3}}-{_DAY}|[2-9][0-9](0[48]|[2468][048]|[13579][26])-02-29)"
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_HEX = "[0-9a-fA-F]"
_URI_CHARACTERS = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_URI_TAIL = f"(/{_URI_CHARACTERS}*)*(\\?({_URI_CHARACTERS}|[/?])*)?(#({_URI_CHARACTERS}|[/?])*)?"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}D(T[0-9]{1,4}[HMS])?|[0-9]{1,4}[YMW]|T([0-9]{1,4}H)?[0-9]{1,4}M|T[0-9]{1,4}S)",
    "email": f"[a-zA-Z0-9_+-]{{1,20}}(\\.[a-zA-Z0-9_+-]{{1,20}}){{0,3}}@{_LABEL}(\\.{_LABEL}){{1,3}}",
    "hostname": f"{_LABEL}(\\.{_LABEL}){{0,5}}",
    "ipv4": f"{_OCTET}(\\.{_OCTET}){{3}}",
    "ipv6": f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}|({_HEX}{{1,4}}:){{1,6}}:{_HEX}{{1,4}}|::({_HEX}{{1,4}}:){{0,5}}{_HEX}{{1,4}}|::",
    "uri": f"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}://{_LABEL}(\\.{_LABEL}){{0,5}}(:[1-9][0-9]{{0,3}})?{_URI_TAIL}",
    "uri-reference": f"(/{_URI_CHARACTERS}+)+(\\?({_URI_CHARACTERS}|[/?])*)?(#({_URI_CHARACTERS}|[/?])*)?",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "json-pointer": '(/([^/~"\\x00-\\x1f\\\\]|~[01])*)*',
}
"""What a format may look like here: a subset of its specification, so that every text is valid in any checker."""

ANNOTATION_FORMATS = frozenset(("password", "byte", "binary", "int32", "int64", "float", "double"))
"""Formats of OpenAPI that say nothing a checker could check of a string."""

_ANYTHING = character_class(JSON_RAW)
_ESCAPE = '["\\u005c/bfnrt] | "u" ([0-9a-cA-CeEfF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2})'  # no surrogates


def plain_string(grammar: GrammarText) -> str:
    """Any string. The rule holds its closing quote: xgrammar's masks are fast for rules that tokens end in."""
    return grammar.shared("string", lambda: _plain_string(grammar))


def _plain_string(grammar: GrammarText) -> str:
    rest = grammar.declare()
    grammar.define(rest, f'"\\"" | {_ANYTHING} {rest} | "\\\\" {grammar.rule(_ESCAPE)} {rest}')
    return grammar.rule(f'"\\"" {rest}')


def string_expression(found: Conjunction, grammar: GrammarText) -> str:
    """The strings that the conjunction allows."""
    path = found.path
    least = int(found.limits.get("minLength", 0))
    most = found.limits.get("maxLength")
    if most is not None and most < least:
        raise unsatisfiable(path, "minLength is larger than maxLength")
    formats = [name for name in found.formats if name not in ANNOTATION_FORMATS]
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise refused("format", path, f"{unknown[0]!r} is not supported (supported: {', '.join(FORMATS)})")
    if len(found.patterns) + len(formats) > 1:
        raise refused("pattern", path, "more than one pattern or format for the same string is not supported")
    if formats:
        branches = [Branch(each.node, False, False) for each in parse_pattern(FORMATS[formats[0]])]
        return grammar.rule(_quoted(_matching(branches, least, most, "format", grammar, path)))
    if found.patterns:
        try:
            branches = parse_pattern(found.patterns[0])
        except GrammarRefused as error:
            raise refused("pattern", path, str(error)) from None
        return grammar.rule(_quoted(_matching(branches, least, most, "pattern", grammar, path)))
    if most is None and not least:
        return plain_string(grammar)
    return grammar.rule(_quoted(repeat(_ANYTHING, least, None if most is None else int(most))))


def key_pattern(pattern: str, path: Path, grammar: GrammarText) -> str:
    """Keys that match the pattern, quotes included; written without escapes."""
    try:
        branches = parse_pattern(pattern)
        options = [_branch(branch, _raw_characters, grammar) for branch in branches]
    except GrammarRefused as error:
        raise refused("patternProperties", path, str(error)) from None
    return grammar.rule(_quoted(choice(options)))


def other_keys(names: set[str], grammar: GrammarText) -> str:
    """Keys that are none of the names, quotes included; written without escapes, which could spell a name."""
    tree: dict[str, dict] = {}  # type: ignore[type-arg]
    ends = set()
    for name in names:
        node = tree
        for character in name:
            node = node.setdefault(character, {})
        ends.add(id(node))
    return grammar.rule(f'"\\"" {_unlike(tree, ends, grammar)} "\\""')


def _unlike(node: dict[str, dict], ends: set[int], grammar: GrammarText) -> str:  # type: ignore[type-arg]
    others = JSON_RAW - CharacterSet.from_text("".join(node))
    options = [f"{character_class(others)} {_ANYTHING}*"]
    for character, child in node.items():
        if character in JSON_RAW:
            options.append(f"{character_class(CharacterSet.from_text(character))} {_unlike(child, ends, grammar)}")
    if id(node) not in ends:
        options.append('""')
    return grammar.rule(choice(options))


def _quoted(expression: str) -> str:
    return f'("\\"" {expression} "\\"")'


def _raw_characters(characters: CharacterSet, *, counted: bool = False) -> str:
    raw = characters & JSON_RAW
    return character_class(raw, counted=counted) if raw else ""


def _matching(
    branches: list[Branch], least: int, most: int | None, keyword: str, grammar: GrammarText, path: Path
) -> str:
    """The branches as an expression, the lengths folded in where that is possible."""
    options = []
    for branch in branches:
        node = branch.node
        closed = not branch.open_start and not branch.open_end
        if closed and isinstance(node, Repeat) and isinstance(node.part, Characters):
            low = max(node.least, least)
            high = node.most if most is None else (most if node.most is None else min(most, node.most))
            if high is None or low <= high:
                node = Repeat(node.part, low, high)
            else:
                continue
        shortest, longest = lengths(node)
        if not closed:
            longest = None
        if shortest < least or (most is not None and (longest is None or longest > most)):
            raise refused(keyword, path, "beside minLength or maxLength is supported only where its own lengths fit")
        try:
            options.append(_branch(Branch(node, branch.open_start, branch.open_end), json_characters, grammar))
        except GrammarRefused as error:
            raise refused(keyword, path, str(error)) from None
    if not options:
        raise unsatisfiable(path, "no string has this pattern and this length")
    return choice(options)


def _branch(branch: Branch, write: CharacterWriter, grammar: GrammarText) -> str:
    expression = pattern_expression(branch.node, write, grammar)
    before = f"{_ANYTHING}* " if branch.open_start else ""
    after = f" {_ANYTHING}*" if branch.open_end else ""
    return f"({before}{expression}{after})"

"""What a Jinja chat template reads, found in its syntax tree without running it."""

from dataclasses import dataclass

from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

_BUILT_IN = frozenset({"strftime_now"})


@dataclass(frozen=True)
class TemplateTraits:
    """`reads` are the names a caller may set; `literals` all constant text, in which roles and tokens are named.

    `takes_parts`: message content may be a list of parts. `takes_text`: it may be a string.
    `tests_null`: the template asks whether content is none, so null must reach it as null.
    """

    reads: frozenset[str]
    literals: frozenset[str]
    attributes: frozenset[str]
    takes_parts: bool
    takes_text: bool
    tests_null: bool

    def mentions(self, word: str) -> bool:
        """Whether any constant of the template is, or holds, the word."""
        return any(word in text for text in self.literals)

    @property
    def renders_tools(self) -> bool:
        return "tools" in self.reads

    @property
    def renders_calls(self) -> bool:
        return "tool_calls" in self.attributes or "tool_calls" in self.literals

    @property
    def renders_results(self) -> bool:
        return "tool" in self.literals

    @property
    def knows_developer(self) -> bool:
        return "developer" in self.literals


def inspect_template(environment: ImmutableSandboxedEnvironment, source: str) -> TemplateTraits:
    """Traits of a template that compiles."""
    tree = environment.parse(source)
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    data = {node.data for node in tree.find_all(nodes.TemplateData)}
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    content = _ContentUse(tree)
    iterated = content.is_iterated()
    return TemplateTraits(
        reads=frozenset(meta.find_undeclared_variables(tree) - set(environment.globals) - _BUILT_IN),
        literals=frozenset(constants | data),
        attributes=frozenset(attributes),
        takes_parts=iterated,
        takes_text=not iterated or content.is_tested("string"),
        tests_null=content.is_tested("none"),
    )


class _ContentUse:
    """Where a template uses message content, under whatever name: an attribute, a variable, a macro's argument."""

    def __init__(self, tree: nodes.Template) -> None:
        self._tree = tree
        self._aliases: set[str] = set()
        macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        grown = True
        while grown:
            before = len(self._aliases)
            for assign in tree.find_all(nodes.Assign):
                if isinstance(assign.target, nodes.Name) and self._is_content(assign.node):
                    self._aliases.add(assign.target.name)
            for call in tree.find_all(nodes.Call):
                if isinstance(call.node, nodes.Name) and call.node.name in macros:
                    self._follow(call, macros[call.node.name])
            grown = len(self._aliases) > before

    def _follow(self, call: nodes.Call, macro: nodes.Macro) -> None:
        for argument, parameter in zip(call.args, macro.args, strict=False):
            if self._is_content(argument):
                self._aliases.add(parameter.name)
        for keyword in call.kwargs:
            if self._is_content(keyword.value):
                self._aliases.add(keyword.key)

    def _is_content(self, node: nodes.Node | None) -> bool:
        if isinstance(node, nodes.Getattr):
            return node.attr == "content"
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        if isinstance(node, nodes.Call):
            getter = isinstance(node.node, nodes.Getattr) and node.node.attr == "get"
            return getter and bool(node.args) and getattr(node.args[0], "value", None) == "content"
        if isinstance(node, nodes.Name):
            return node.name in self._aliases
        if isinstance(node, nodes.Filter):
            return self._is_content(node.node)
        if isinstance(node, nodes.CondExpr):
            return self._is_content(node.expr1) or self._is_content(node.expr2)
        if isinstance(node, nodes.Or):
            return self._is_content(node.left)
        return False

    def is_iterated(self) -> bool:
        if any(self._is_content(loop.iter) for loop in self._tree.find_all(nodes.For)):
            return True
        # `content[0].text` is a part; `content[0]` alone may be a string's first character.
        fields: list[tuple[nodes.Node, object]] = [
            (node.node, node.attr) for node in self._tree.find_all(nodes.Getattr)
        ]
        for item in self._tree.find_all(nodes.Getitem):
            if isinstance(item.arg, nodes.Const):
                fields.append((item.node, item.arg.value))
        return any(name in ("text", "type") and self._is_indexed_content(node) for node, name in fields)

    def _is_indexed_content(self, node: nodes.Node) -> bool:
        if not isinstance(node, nodes.Getitem) or not isinstance(node.arg, nodes.Const):
            return False
        return isinstance(node.arg.value, int) and self._is_content(node.node)

    def is_tested(self, test: str) -> bool:
        return any(found.name == test and self._is_content(found.node) for found in self._tree.find_all(nodes.Test))

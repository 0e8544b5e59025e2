"""Every tool-call format that Candor knows."""

from function_call.formats.bare_json import BARE_JSON
from function_call.formats.framed import FRAMED
from function_call.formats.json_lists import JSON_LISTS
from function_call.formats.key_value_tags import KEY_VALUE_TAGS
from function_call.formats.nested_xml import NESTED_XML
from function_call.formats.python_notation import PYTHON_NOTATION
from function_call.formats.sectioned_json import SECTIONED_JSON
from function_call.formats.tagged_json import TAGGED_JSON
from function_call.formats.xml_elements import XML_ELEMENTS
from function_call.machinery.format import ToolFormat

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    *TAGGED_JSON,
    *BARE_JSON,
    *JSON_LISTS,
    *SECTIONED_JSON,
    *KEY_VALUE_TAGS,
    *XML_ELEMENTS,
    *NESTED_XML,
    *PYTHON_NOTATION,
    *FRAMED,
)

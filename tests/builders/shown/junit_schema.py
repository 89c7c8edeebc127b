"""What Jenkins allows in JUnit XML."""

JUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {
            *("name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp"),
            *("hostname", "id", "package", "file", "log", "url"),
        },
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name", "time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    "failure": ({"type", "message"}, set()),
    "error": ({"type", "message"}, set()),
    "skipped": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}
"""Element → attributes and children that Jenkins' junit-10.xsd allows."""


def assert_of_the_schema(element):
    """Fail where an element has what the schema does not allow."""
    attributes, children = JUNIT[element.tag]
    assert set(element.attrib) <= attributes, element.tag
    assert {child.tag for child in element} <= children, element.tag
    for child in element:
        assert_of_the_schema(child)

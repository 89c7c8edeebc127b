"""What a browser would make of a page."""

import html
import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements, attributes, scripts and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.words = [], [], []
        self._in_script = False
        self.feed(text)
        self.text = html.unescape(" ".join(" ".join(self.words).split()))

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self._in_script = True
            self.scripts.append((dict(attributes), []))

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1][1].append(data)
        else:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def specs(self):
        """The figures' data."""
        typed = [s for s in self.scripts if s[0].get("type") == "application/json"]
        return [json.loads("".join(data)) for _, data in typed]

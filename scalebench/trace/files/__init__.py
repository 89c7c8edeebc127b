"""Files of traces: streams of JSON, events of Kineto, and which rank wrote them."""

"""Plan documents with round numbers."""

from plan_documents import document, make_front, overfull

__all__ = ["document", "make_front", "overfull"]

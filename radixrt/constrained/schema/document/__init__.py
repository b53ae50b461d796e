"""JSON schema documents: drafts, resources, anchors and references."""

from radixrt.constrained.schema.document.document import Document

__all__ = ["Document"]

"""The storage schema: where each kind lives and in which version it is stored, as numbered frozen documents."""

from outlive.store.schema.documents import SchemaDocument, latest_version, load_document

__all__ = ["SchemaDocument", "latest_version", "load_document"]

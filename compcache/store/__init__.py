"""Stores: a tree of entries and blobs behind one interface."""

from compcache.store.protocol import Found, Store

__all__ = ["Found", "Store"]

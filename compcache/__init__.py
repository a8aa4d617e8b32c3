"""compcache keeps what a compiler produced, so that a program is compiled once per configuration.

``import compcache`` imports no engine and opens nothing. Start at :class:`compcache.cache.Cache`.
"""

__version__ = "0.1.0"

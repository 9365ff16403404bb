"""The real package neonize, except for its native part: see `tests/channels/whatsapp_web_native.py`.

A gateway process of a test finds this package first. Modules that are not here are those of the library.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)

"""Annotation keys and codecs: one module a format, one error for all of them."""

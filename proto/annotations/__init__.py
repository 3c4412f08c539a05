"""Annotation keys and codecs: one module for each format, one error for all of them."""

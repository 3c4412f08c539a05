"""The language both programs speak: values, annotation codecs, kubelet stubs, Kubernetes objects."""

__version__ = "0.1.0"

"""The language both programs speak: values, annotation codecs, kubelet stubs, Kubernetes objects."""

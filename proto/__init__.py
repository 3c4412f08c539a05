"""Everything that both programs exchange: values, codecs, kubelet stubs, Kubernetes objects. Text enters, typed values
leave, and back.
"""

__version__ = "0.1.0"

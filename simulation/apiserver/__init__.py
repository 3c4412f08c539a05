"""The embedded API server: what both programs and kubectl need of the Kubernetes API, in memory."""

from simulation.apiserver.faults import Fault
from simulation.apiserver.routes import RecordedRequest
from simulation.apiserver.server import EmbeddedApiServer

__all__ = ["EmbeddedApiServer", "Fault", "RecordedRequest"]

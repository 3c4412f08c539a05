"""Strategy `immediate`: Allocate answers at once, from the annotation of the pod that it is proven to be for."""

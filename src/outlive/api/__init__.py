"""The HTTP server: resources in a part of the Kubernetes protocol, placement, metrics, and pages for people."""

"""What Outlive keeps in a Kubernetes cluster beside its own kinds."""

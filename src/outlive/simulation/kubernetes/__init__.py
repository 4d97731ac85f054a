"""A virtual Kubernetes around a virtual DRBD cluster: what the storage agent is played against."""

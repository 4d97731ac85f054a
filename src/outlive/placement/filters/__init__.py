"""The filters: each says which hosts may take a request, and why not."""

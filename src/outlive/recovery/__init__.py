"""From a proof of death to running VMs: claims the promised slots, assigns, and follows until they are seen running."""

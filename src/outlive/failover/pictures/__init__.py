"""Reports to look at: from plain data to one HTML file without anything outside it. Pure; modules by name."""

"""Code that touches the outside world. Drivers are imported by module name, because each brings its own library."""

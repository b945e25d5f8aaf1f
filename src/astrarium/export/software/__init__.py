"""Training software: one module with a `TARGET` each, found by `export.target`."""

"""The catalog as documents and tables: `entries`, `prices` and training programs (`runtimes`)."""

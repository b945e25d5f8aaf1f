"""The catalog as documents and tables: `entries` and `prices`."""

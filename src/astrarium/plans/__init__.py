"""Plans as documents: the schema, its files, and what exporters and runtimes read of them."""

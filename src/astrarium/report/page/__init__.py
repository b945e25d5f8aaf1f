"""A plan as one HTML file: `html`. Inside, `data` is what its pictures draw."""

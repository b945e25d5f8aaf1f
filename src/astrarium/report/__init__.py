"""A plan as people and programs read it: documents, tables, explanations. Never searches."""

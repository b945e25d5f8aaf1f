"""Why a plan costs what it costs: `terms` for programs, `text` for people."""

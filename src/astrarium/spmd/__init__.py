"""Programs for devices of different speed: one program, unequal parts, chosen collectives."""

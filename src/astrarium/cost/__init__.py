"""The one cost model: operators, collectives, memory, schedule, step."""

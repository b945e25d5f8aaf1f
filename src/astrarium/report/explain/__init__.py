"""Why a plan costs what it costs: `terms` for programs, `text` for people.

Inside, `contributions` says what pools and links contribute, and `pools` prints it.
"""

"""The inside of a rank: `worker` trains with megatron-core, the other modules are its parts."""
